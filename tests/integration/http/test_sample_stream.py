"""The sample of each server-sent event, in the docs and in OpenAPI."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.genai import types
from starlette.requests import Request
from support.http_paths import CHANGES, USER_CHANGES, app_of
from support.http_server import Client, ServerEvent, serving
from support.spoken_model import SpokenModel
from support.subscriptions import IDS, new_event
from support.subscriptions import SESSION as KEY

from mongo_session_service import MongoSessionService

SAMPLE = (files("mongo_session_service.http") / "sample_stream.txt").read_text("utf-8")
SAMPLES = {
    found["kind"]: ServerEvent(found["kind"], found["id"], json.loads(found["data"]))
    for found in re.finditer(
        r"event: (?P<kind>.*)\n(?:id: (?P<id>.*)\n)?data: (?P<data>.*)\n", SAMPLE
    )
}


async def take(client: Client, kind: str) -> ServerEvent:
    while (received := await client.next()).kind != kind:
        pass
    return received


def assert_alike(sample: Any, real: Any) -> None:
    """Same names and kinds of values; an event's sample may have fewer names."""
    assert type(sample) is type(real)
    if isinstance(sample, dict):
        assert sample.keys() <= real.keys()
        for name in sample.keys() - {"state_delta"}:
            assert_alike(sample[name], real[name])
    if isinstance(sample, list):
        for each, other in zip(sample, real, strict=True):
            assert_alike(each, other)


@pytest.mark.limits(http_heartbeat_seconds=0.1)
async def test_the_sample_has_what_is_sent(service: MongoSessionService) -> None:
    """Each kind of event: its names, its kinds of values, and the form of its id."""
    model, is_allowed = SpokenModel(), True

    def authorize(_: Request, **__: Any) -> bool:
        return is_allowed

    session = await service.create_session(**KEY)
    agent = LlmAgent(name="clock", model=model)
    runner = Runner(agent=agent, app_name=IDS["app_name"], session_service=service)
    app = app_of(service, runner=runner, authorize=authorize)
    async with (
        serving(app) as url,
        Client(f"{url}{CHANGES}", partials=True) as client,
        Client(f"{url}{USER_CHANGES}") as of_user,
    ):
        real = [await take(client, "snapshot")]
        asked = types.UserContent("What time is it?")
        ids = {"user_id": session.user_id, "session_id": session.id}
        running = await service.start_turn(runner, **ids, new_message=asked)
        real.append(await take(client, "turn"))
        model.say("It is late.")
        real.append(await take(client, "partial"))
        model.end_answer()
        await running.result()
        real.append(await take(client, "appended"))
        other = await service.create_session(**IDS)
        real.append(await take(of_user, "created"))
        await service.append_event(other, new_event(**{"user:city": "Turin"}))
        real.append(await take(client, "state"))
        await service.update_session(**KEY, title="The time")
        real.append(await take(client, "updated"))
        said = [each.id async for _, each in service.iter_events(**KEY)]
        await service.redact_events(**KEY, event_ids=said[:1])
        real.append(await take(client, "redacted"))
        await service.delete_session(**KEY)
        real.append(await take(client, "deleted"))
        is_allowed = False
        real.append(await take(of_user, "trouble"))

    assert list(SAMPLES) == [each.kind for each in real]
    for each in real:
        sample = SAMPLES[each.kind]
        forms = (re.sub("[0-9a-f]+", "n", it or "") for it in (sample.id, each.id))
        assert len({*forms}) == 1
        assert sample.data.keys() == each.data.keys()
        assert_alike(sample.data, each.data)


def test_the_sample_is_in_the_docs_and_in_openapi(service: MongoSessionService) -> None:
    """Of both streams."""
    root = Path(__file__).parents[3]
    page = (root / "docs/reference/http.md").read_text("utf-8")
    assert f"```text\n{SAMPLE}```\n" in page
    paths = app_of(service).openapi()["paths"]
    streams = [paths[each]["get"] for each in paths if each.endswith("/changes")]
    answers = [each["responses"]["200"]["content"] for each in streams]
    assert [each["text/event-stream"]["example"] for each in answers] == [SAMPLE] * 2
