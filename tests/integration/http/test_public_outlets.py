"""Every outlet sends the public view: no credential leaves the process.

A new outlet, as a command or a route, is a function here with ``@outlet``: it returns
all that a reader outside gets of the session ``WHERE``, which holds credentials
everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest
from support import credentials
from support.cli_runner import PATIENCE, call, start
from support.credentials import CANARY
from support.http_paths import CHANGES, EVENTS, SESSION, USER, USER_CHANGES
from support.http_server import Client, serving

from mongo_session_service import MongoSessionService
from mongo_session_service.changes.change import Change
from mongo_session_service.http import allow_everyone, live_app

WHERE: Final = {"app_name": "app", "user_id": "user", "session_id": "s"}
CONSUMER: Final = "billing"


@dataclass(frozen=True)
class World:
    """A database in which credentials are everywhere, and a service that reads it."""

    service: MongoSessionService
    place: tuple[str, ...]
    """The command line's options that name the database."""

    async def printed(self, *arguments: str) -> str:
        """All that a command prints, on both streams."""
        done = await asyncio.to_thread(call, *arguments, *self.place)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    async def watched(self, *options: str) -> str:
        """What ``watch`` prints of the session until it is deleted."""
        of = ("--app", "app", "--user", "user", "--session", "s")
        arguments = ("watch", *of, "--after-revision", "0", *options, *self.place)
        process = await asyncio.to_thread(start, *arguments)
        try:
            assert process.stderr is not None
            await asyncio.to_thread(process.stderr.readline)  # once it watches
            await self.service.delete_session(**WHERE)
            out, err = await asyncio.to_thread(process.communicate, timeout=PATIENCE)
        finally:
            process.kill()
        return (out + err).decode()

    async def streamed(self, path: str, **query: str) -> str:
        """The lines of a stream with the session, until it is deleted."""
        app = live_app(self.service, authorize=allow_everyone)
        async with serving(app) as url, Client(f"{url}{path}", **query) as client:
            lines = [await client.line()]
            session = await self.service.get_session(**WHERE)
            again = credentials.event().model_copy(update={"id": "event-3"})
            await self.service.append_event(session, again)
            while not any(line.startswith("data:") for line in lines):
                lines.append(await client.line())
            await self.service.delete_session(**WHERE)
            while "event: deleted" not in lines:
                lines.append(await client.line())
        return "\n".join(lines)

    async def answered(self, path: str, method: str = "GET", **body: Any) -> str:
        """The live app's answer to a request."""
        app = live_app(self.service, authorize=allow_everyone)
        more = {"json": body} if body else {}
        async with serving(app) as url, httpx.AsyncClient(trust_env=False) as http:
            origin = {"Origin": url}
            response = await http.request(
                method, f"{url}{path}", headers=origin, **more
            )
        return f"{response.headers}{response.text}"


Outlet = Callable[[World], Awaitable[str]]
OUTLETS: dict[str, tuple[str, Outlet]] = {
    "stream from now": ("my-client", lambda it: it.streamed(CHANGES)),
    "stream with history": (
        "adk_request_credential",
        lambda it: it.streamed(CHANGES, history="all"),
    ),
    "stream after revision": (
        "adk_request_credential",
        lambda it: it.streamed(CHANGES, after_revision="0"),
    ),
    "stream of a tab": (
        "my-client",
        lambda it: it.streamed(USER_CHANGES, session_id="s"),
    ),
    "stream of a user": ('"revision":3', lambda it: it.streamed(USER_CHANGES)),
    "stream of an app": ('"revision":3', lambda it: it.streamed("/apps/app/changes")),
    "stream of everything": ('"revision":3', lambda it: it.streamed("/changes")),
    "whole session": ("adk_request_credential", lambda it: it.answered(SESSION)),
    "session at its creation": (
        "my-client",
        lambda it: it.answered(f"{SESSION}?at_revision=0"),
    ),
    "session at an event": (
        "adk_request_credential",
        lambda it: it.answered(f"{SESSION}?at_revision=1"),
    ),
    "list of events": ("adk_request_credential", lambda it: it.answered(EVENTS)),
    "fork": ('"session_id"', lambda it: it.answered(f"{SESSION}/fork", "POST")),
    "update": ('"title":"T"', lambda it: it.answered(SESSION, "PATCH", title="T")),
    "delete": ("null", lambda it: it.answered(SESSION, "DELETE")),
    "live page": ("<title>", lambda it: it.answered("/")),
    "list of apps": ('"session_id":"s"', lambda it: it.answered("/apps")),
    "list of an app": (
        '"session_id":"s"',
        lambda it: it.answered("/apps/app/sessions"),
    ),
    "list of a user": ('"session_id":"s"', lambda it: it.answered(f"{USER}/sessions")),
    "session by its id": (
        '"session_id":"s"',
        lambda it: it.answered("/apps/app/sessions?session_id=s"),
    ),
    "watch in text": ("my_tool(", lambda it: it.watched()),
    "watch in json": ("adk_request_credential", lambda it: it.watched("--json")),
    "dead letters in text": (
        "ValueError",
        lambda it: it.printed("consumers", "dead-letters", CONSUMER),
    ),
    "dead letters in json": (
        "adk_request_credential",
        lambda it: it.printed("consumers", "dead-letters", CONSUMER, "--json"),
    ),
    "sessions in json": (
        '"revision": 2',
        lambda it: it.printed("sessions", "--app", "app", "--json"),
    ),
    "sessions in text": ("2 ", lambda it: it.printed("sessions", "--app", "app")),
    "show in text": ("my_tool(", lambda it: it.printed("show", *WHERE.values())),
    "show in json": (
        "adk_request_credential",
        lambda it: it.printed("show", *WHERE.values(), "--json"),
    ),
}
"""What each shows, of what it may show."""


@pytest.fixture
async def world(service: MongoSessionService, mongodb_uri: str, database: str) -> World:
    """Credentials in state, in an event, and in the errors of a handler."""
    parked = credentials.state() | credentials.hidden()
    session = await service.create_session(**WHERE, state=parked)
    await service.append_event(session, credentials.event())
    await service.append_event(session, credentials.hidden_event())
    consumer = service.consumer(CONSUMER)

    async def fail(change: Change) -> Any:
        if change.revision == 2:
            await consumer.close()
        raise ValueError(str(change.model_dump()))

    await consumer.run(fail, max_attempts=1)
    letters = [each async for each in service.consumer(CONSUMER).dead_letters()]
    assert [CANARY in str(each.change) for each in letters] == [True, True]
    return World(service, ("--uri", mongodb_uri, "--database", database))


@pytest.mark.daily(9)
@pytest.mark.parametrize("name", OUTLETS)
async def test_no_credential_leaves_the_process(world: World, name: str) -> None:
    """What is shown shows no secret, and is shown."""
    shows, read = OUTLETS[name]

    shown = await read(world)

    assert shows in shown
    assert CANARY not in shown
    assert "__adk_internal_" not in shown
