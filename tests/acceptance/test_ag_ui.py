"""AG-UI's middleware for ADK in front of our service, in two server processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import venv
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Browser, expect
from support.front_ends import bundle, serve_page

from mongo_session_service.embedded.mongod import HOST, free_ports

pytestmark = [pytest.mark.release, pytest.mark.xdist_group("ag_ui")]

ROOT = Path(__file__).parents[2]
TURNS = 100
TOOL = {
    "name": "approve",
    "description": "Asks the user.",
    "parameters": {"type": "object", "properties": {"what": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the newest ``ag-ui-adk`` and its many dependencies."""
    folder = tmp_path_factory.mktemp("ag_ui")
    venv.create(folder, with_pip=True)
    program = folder / "bin/python"
    install = [program, "-m", "pip", "install", "--quiet", "ag-ui-adk", "--editable"]
    subprocess.run([*install, ROOT], check=True, capture_output=True)
    return program


@dataclass
class Chat:
    """A user's browser: a thread and all its messages, sent to any server."""

    ports: list[int]
    messages: list[dict[str, Any]] = field(default_factory=list)

    def run(self, server: int, message: dict[str, Any]) -> list[dict[str, Any]]:
        """The events with which a server answers one more message."""
        body = {
            "threadId": "t",
            "runId": message["id"],
            "state": {},
            "messages": [*self.messages, message],
            "tools": [TOOL],
            "context": [],
            "forwardedProps": {},
        }
        reply = httpx.post(self._url(server), json=body, timeout=60)
        lines = reply.raise_for_status().text.splitlines()
        return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]

    def say(self, server: int, message: dict[str, Any]) -> str:
        """What a server answers one more message; both stay in the chat."""
        events = self.run(server, message)
        assert errors(events) == []
        answer = text(events)
        reply = {"id": f"{message['id']}-r", "role": "assistant", "content": answer}
        self.messages += [message, reply]
        return answer

    def stored(self, server: int) -> list[dict[str, Any]]:
        """The messages that a page which is loaded again gets.

        Their ids are left out: the middleware makes some of them each time.
        """
        body = {"threadId": "t", "appName": "my_app", "userId": "ada"}
        reply = httpx.post(f"{self._url(server)}agents/state", json=body, timeout=60)
        return [{**each, "id": None} for each in reply.json()["messages"]]

    def commands(self) -> Counter[str]:
        """The commands that both servers have sent since the last time."""
        counted: Counter[str] = Counter()
        for server in range(len(self.ports)):
            names = httpx.get(f"{self._url(server)}commands").json()
            counted.update(name for name in names if name != "listIndexes")
        return counted

    def _url(self, server: int) -> str:
        return f"http://{HOST}:{self.ports[server]}/"


def said(number: int) -> dict[str, Any]:
    return {"id": f"m{number}", "role": "user", "content": f"hi {number}"}


def text(events: list[dict[str, Any]]) -> str:
    """What the agent says in them."""
    return "".join(
        each["delta"] for each in events if each["type"] == "TEXT_MESSAGE_CONTENT"
    )


def errors(events: list[dict[str, Any]]) -> list[str]:
    return [each["message"] for each in events if each["type"] == "RUN_ERROR"]


@contextmanager
def server(
    python: Path, uri: str, database: str, port: int, mode: str
) -> Iterator[None]:
    """A server process that answers."""
    program = ROOT / "tests/support/ag_ui_server.py"
    with subprocess.Popen(
        [python, program, uri, database, str(port), mode],
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stderr is not None
            next(line for line in process.stderr if "Application startup" in line)
            with ThreadPoolExecutor(1) as reading:
                reading.submit(process.stderr.read)
                try:
                    yield
                finally:
                    process.terminate()
        finally:
            process.kill()


@pytest.mark.parametrize("mode", ["rebase", "raise", "turns"])
def test_a_chat_goes_on_at_any_server(
    python: Path, mongodb_uri: str, database: str, mode: str
) -> None:
    """The answer to a tool call, a hundred turns, a restart and a reload of the page.

    Then eight requests at once. With ``rebase`` and in turns all are answered, in turns
    each knows of those before; with ``raise`` some are refused as stale, and no other
    error comes.
    """
    place = (python, mongodb_uri, database)
    chat = Chat(free_ports(2))
    with ExitStack() as first, server(*place, chat.ports[1], mode):
        first.enter_context(server(*place, chat.ports[0], mode))
        question = {"id": "q", "role": "user", "content": "delete it"}
        events = chat.run(0, question)
        assert errors(events) == []
        (called,) = [each for each in events if each["type"] == "TOOL_CALL_START"]
        function = {"name": "approve", "arguments": '{"what": "it"}'}
        calls = [{"id": called["toolCallId"], "type": "function", "function": function}]
        asked = {"id": "a", "role": "assistant", "toolCalls": calls}
        chat.messages += [question, asked]
        approved = {"role": "tool", "toolCallId": called["toolCallId"]}

        answer = chat.say(1, {"id": "y", **approved, "content": '{"approved": true}'})

        assert answer == "heard {'approved': True}"
        chat.commands()
        for number in range(TURNS):
            answer = chat.say(number % 2, said(number))
            assert answer == f"hi {number} after {5 + 2 * number}"
        counted = chat.commands()
        assert counted.total() <= TURNS * (17 if mode == "turns" else 14), counted

        first.close()
        with server(*place, chat.ports[0], mode):
            assert chat.stored(0) == chat.stored(1)
            assert len(chat.stored(0)) == 4 + 2 * TURNS
            assert chat.say(0, said(TURNS)) == f"hi {TURNS} after {5 + 2 * TURNS}"

            with ThreadPoolExecutor(8) as at_once:
                last = range(TURNS + 1, TURNS + 9)
                runs = list(at_once.map(lambda n: chat.run(n % 2, said(n)), last))
            failed = [each for events in runs for each in errors(events)]
            assert all("was modified in storage" in each for each in failed)
            assert not failed or mode == "raise"
            assert len(chat.stored(0)) >= 6 + 2 * TURNS + 2 * (8 - len(failed))
            if mode == "turns":
                seen = sorted(int(text(events).split()[-1]) for events in runs)
                assert seen == [7 + 2 * TURNS + 2 * n for n in range(8)]


async def test_copilotkit_streams_and_shows_what_is_stored(
    python: Path, mongodb_uri: str, database: str, browser: Browser, tmp_path: Path
) -> None:
    """A page that is loaded again in the middle of an answer does not lose it."""
    packages = ("@copilotkit/react-core@1", "@ag-ui/client@0.0.59")
    script = bundle(ROOT / "examples/copilotkit.jsx", packages, tmp_path)
    (port,) = free_ports(1)
    with server(python, mongodb_uri, database, port, "rebase"):
        page = await browser.new_page()
        await serve_page(page, script)
        await page.goto(f"http://{HOST}:{port}/")
        messages = page.locator(".message")
        await page.get_by_label("Message").fill("count")
        await page.get_by_label("Message").press("Enter")
        await expect(messages).to_have_text(["user: count", re.compile("1 2 3")])
        assert "40" not in (await messages.last.text_content() or "")

        await page.reload()
        await expect(messages.first).to_have_text("user: count")
        async with asyncio.timeout(60):
            while await messages.count() < 2:
                await page.reload()
                await expect(messages.first).to_have_text("user: count")

        whole = "assistant: " + " ".join(map(str, range(1, 41)))
        await expect(messages).to_have_text(["user: count", whole])
