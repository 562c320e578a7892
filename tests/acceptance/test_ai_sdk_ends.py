"""How an answer has ended, as examples/ai_sdk.py says it to the AI SDK."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from support.adk_tools import with_database
from support.http_server import serving
from support.spoken_model import BreakingModel, SpokenModel

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("ai_sdk", "ai_sdk_stream", "scripted_model")
OWNER = {"app_name": "ai_sdk", "user_id": "ada"}


@pytest.fixture
def example(
    mongodb_uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    """The program, in which nothing has run yet."""
    monkeypatch.setenv("MONGODB_URI", with_database(mongodb_uri, database))
    monkeypatch.syspath_prepend(EXAMPLES)
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import ai_sdk  # noqa: PLC0415  from the folder of the examples

    return ai_sdk


async def chunks_of(response: httpx.Response) -> AsyncIterator[Any]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ("failed", {"type": "error", "errorText": "There is no answer. Try it again."}),
        ("stopped", {"type": "abort"}),
        ("ended", {"type": "finish"}),
    ],
)
async def test_the_last_chunk_is_how_the_turn_has_ended(
    example: ModuleType, how: str, end: dict[str, str]
) -> None:
    """For who has asked, and for a page that has resumed the answer."""
    model = BreakingModel() if how == "failed" else SpokenModel()
    example.agent.model = model
    body = {"id": "s", "messages": [{"parts": [{"type": "text", "text": "Hi"}]}]}
    async with (
        example.lifespan(example.app),
        serving(example.app) as url,
        httpx.AsyncClient(trust_env=False, timeout=60) as http,
        http.stream("POST", f"{url}/api/chat", json=body) as asking,
    ):
        model.say("It is ")
        asked = chunks_of(asking)
        while (await anext(asked))["type"] != "text-delta":
            pass
        path = f"{url}/api/chat/s/stream?after=0"
        async with http.stream("GET", path) as resuming:
            resumed = chunks_of(resuming)
            while (await anext(resumed))["type"] != "text-delta":
                pass
            if how == "stopped":
                await example.service.stop_turn(**OWNER, session_id="s")
            else:
                model.end_answer()
            ends = [[it async for it in each][-1] for each in (asked, resumed)]
    assert ends == [end, end]
