"""ADK's own tools as processes, with an agent whose model is scripted."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from google.adk.cli import service_registry

from support.patience import PATIENCE

APP = "colours"

SERVICES = """
services:
  - scheme: mongodb
    type: session
    class: mongo_session_service.MongoSessionService
  - scheme: mongodb+srv
    type: session
    class: mongo_session_service.MongoSessionService
"""

AGENT = '''
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types


class ScriptedModel(BaseLlm):
    """Calls the tool with what the user says, then tells how much it was sent."""

    model: str = "scripted"

    async def generate_content_async(self, llm_request, stream=False):
        latest = llm_request.contents[-1].parts[-1]
        if latest.function_response:
            part = types.Part(text=f"I was sent {len(llm_request.contents)} contents.")
        else:
            call = {"colour": latest.text}
            part = types.Part.from_function_call(name="like", args=call)
        yield LlmResponse(content=types.ModelContent(part))


def like(colour: str, tool_context) -> str:
    """Notes a colour."""
    tool_context.state["latest"] = colour
    tool_context.state["user:favourite"] = colour
    tool_context.state["app:liked"] = tool_context.state.get("app:liked", 0) + 1
    return colour


root_agent = LlmAgent(
    name="painter", model=ScriptedModel(), tools=[like], output_key="answer"
)
'''


def write_agents(directory: Path) -> None:
    """Make a folder with the agent, and a ``services.yaml`` as ADK documents it."""
    agent = directory / APP
    agent.mkdir(parents=True)
    (agent / "__init__.py").write_text("from . import agent\n")
    (agent / "agent.py").write_text(AGENT)
    for folder in (directory, agent):  # the servers read the first, adk run the second
        (folder / "services.yaml").write_text(SERVICES)


@dataclass(frozen=True)
class Server:
    """One of ADK's servers, running."""

    process: subprocess.Popen[bytes]
    log: Path
    api: httpx.Client


@contextmanager
def adk(command: str, agents_dir: Path, uri: str, *options: str) -> Iterator[Server]:
    """Run ``adk api_server`` or ``adk web`` until the end of the block."""
    arguments = [*adk_command(command), f"--session_service_uri={uri}", *options]
    with serving([*arguments, str(agents_dir)], environment(agents_dir)) as server:
        yield server


@contextmanager
def serving(arguments: list[str], environment: dict[str, str]) -> Iterator[Server]:
    """Run one of ADK's servers, at a free port, until the end of the block."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = Path(environment["HOME"], f"server-{port}.log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*arguments, "--host=127.0.0.1", f"--port={port}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    with process:
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}",
                timeout=PATIENCE,
                trust_env=False,
                # After an answer 500 the server closes the connection.
                limits=httpx.Limits(max_keepalive_connections=0),
            ) as api:
                server = Server(process, log, api)
                wait_until_ready(server)
                yield server
        finally:
            process.kill()


def adk_command(command: str) -> list[str]:
    """The start of a command line of ADK's."""
    return [sys.executable, "-m", "google.adk.cli", command]


def environment(agents_dir: Path) -> dict[str, str]:
    """A home without ADK settings, such as consent to report usage to Google."""
    home = str(agents_dir.parent)
    return {**os.environ, "HOME": home, "TMPDIR": home}


def wait_until_ready(server: Server) -> None:
    """Return when a server answers; fail if it ends, or takes too long."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert server.process.poll() is None, server.log.read_text()
        try:
            server.api.get("/health").raise_for_status()
        except httpx.TransportError:
            time.sleep(0.02)
        else:
            return
    pytest.fail(server.log.read_text())


def forget_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ADK read services as in a new process, in this test only."""
    monkeypatch.setattr(service_registry, "_service_registry_instance", None)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "services", sys)
    del sys.modules["services"]  # at the end it is removed again


def with_database(uri: str, database: str) -> str:
    """A MongoDB URI that names a database."""
    return urlsplit(uri)._replace(path=f"/{database}").geturl()


def sessions_of(user_id: str) -> str:
    """The path of a user's sessions."""
    return f"/apps/{APP}/users/{user_id}/sessions"


def turn(session_id: str, text: str) -> dict[str, Any]:
    """The request for a turn of the user ``ada``."""
    message = {"role": "user", "parts": [{"text": text}]}
    return {
        "app_name": APP,
        "user_id": "ada",
        "session_id": session_id,
        "new_message": message,
    }


def texts(events: list[dict[str, Any]]) -> list[str]:
    parts = [part for event in events for part in event["content"]["parts"]]
    return [part["text"] for part in parts if "text" in part]
