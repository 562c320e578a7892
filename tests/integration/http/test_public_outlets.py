"""Every outlet sends the public view: no credential leaves the process.

A new outlet, as a command or a route, is a function here with ``@outlet``: it returns
all that a reader outside gets of the session ``WHERE``, which holds credentials
everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from google.adk.auth import auth_credential
from google.adk.cli.fast_api import get_fast_api_app
from google.adk.events import Event
from support import credentials
from support.adk_tools import SERVICES, forget_services
from support.cli_runner import PATIENCE, call, start
from support.credentials import CANARY
from support.http_paths import CHANGES, EVENTS, SESSION, USER, USER_CHANGES
from support.http_server import Client, serving

from mongo_session_service import MongoSessionService
from mongo_session_service.changes.change import Change
from mongo_session_service.http import allow_everyone, live_app, sessions_router

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
            again = credentials.event().model_copy(update={"id": "event-2"})
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
OUTLETS: dict[str, tuple[str, Outlet]] = {}


def outlet(shows: str) -> Callable[[Outlet], Outlet]:
    """Have an outlet tried, which shows this of what it may show."""

    def add(read: Outlet) -> Outlet:
        OUTLETS[read.__name__] = shows, read
        return read

    return add


@outlet(shows="my-client")
async def stream_from_now(world: World) -> str:
    return await world.streamed(CHANGES)


@outlet(shows="adk_request_credential")
async def stream_with_history(world: World) -> str:
    return await world.streamed(CHANGES, history="all")


@outlet(shows="adk_request_credential")
async def stream_after_revision(world: World) -> str:
    return await world.streamed(CHANGES, after_revision="0")


@outlet(shows="my-client")
async def stream_of_a_tab(world: World) -> str:
    return await world.streamed(USER_CHANGES, session_id="s")


@outlet(shows='"revision":3')
async def stream_of_a_user(world: World) -> str:
    return await world.streamed(USER_CHANGES)


@outlet(shows='"revision":3')
async def stream_of_an_app(world: World) -> str:
    return await world.streamed("/apps/app/changes")


@outlet(shows='"revision":3')
async def stream_of_everything(world: World) -> str:
    return await world.streamed("/changes")


@outlet(shows="adk_request_credential")
async def whole_session(world: World) -> str:
    return await world.answered(SESSION)


@outlet(shows="my-client")
async def session_at_its_creation(world: World) -> str:
    return await world.answered(f"{SESSION}?at_revision=0")


@outlet(shows="adk_request_credential")
async def session_at_an_event(world: World) -> str:
    return await world.answered(f"{SESSION}?at_revision=1")


@outlet(shows="adk_request_credential")
async def list_of_events(world: World) -> str:
    return await world.answered(EVENTS)


@outlet(shows='"session_id"')
async def fork(world: World) -> str:
    return await world.answered(f"{SESSION}/fork", "POST")


@outlet(shows='"title":"T"')
async def update(world: World) -> str:
    return await world.answered(SESSION, "PATCH", title="T")


@outlet(shows="null")
async def delete(world: World) -> str:
    return await world.answered(SESSION, "DELETE")


@outlet(shows="<title>")
async def live_page(world: World) -> str:
    return await world.answered("/")


@outlet(shows='"session_id":"s"')
async def list_of_apps(world: World) -> str:
    return await world.answered("/apps")


@outlet(shows='"session_id":"s"')
async def list_of_an_app(world: World) -> str:
    return await world.answered("/apps/app/sessions")


@outlet(shows='"session_id":"s"')
async def list_of_a_user(world: World) -> str:
    return await world.answered(f"{USER}/sessions")


@outlet(shows='"session_id":"s"')
async def session_by_its_id(world: World) -> str:
    return await world.answered("/apps/app/sessions?session_id=s")


@outlet(shows="my_tool(")
async def watch_in_text(world: World) -> str:
    return await world.watched()


@outlet(shows="adk_request_credential")
async def watch_in_json(world: World) -> str:
    return await world.watched("--json")


@outlet(shows="ValueError")
async def dead_letters_in_text(world: World) -> str:
    return await world.printed("consumers", "dead-letters", CONSUMER)


@outlet(shows="adk_request_credential")
async def dead_letters_in_json(world: World) -> str:
    return await world.printed("consumers", "dead-letters", CONSUMER, "--json")


@outlet(shows='"revision": 2')
async def sessions_in_json(world: World) -> str:
    return await world.printed("sessions", "--app", "app", "--json")


@outlet(shows="2 ")
async def sessions_in_text(world: World) -> str:
    return await world.printed("sessions", "--app", "app")


@outlet(shows="my_tool(")
async def show_in_text(world: World) -> str:
    return await world.printed("show", *WHERE.values())


@outlet(shows="adk_request_credential")
async def show_in_json(world: World) -> str:
    return await world.printed("show", *WHERE.values(), "--json")


@pytest.fixture
async def world(service: MongoSessionService, mongodb_uri: str, database: str) -> World:
    """Credentials in state, in an event, and in the errors of a handler."""
    session = await service.create_session(**WHERE, state=credentials.state())
    await service.append_event(session, credentials.event())
    await service.append_event(session, Event(author="agent"))
    consumer = service.consumer(CONSUMER)

    async def fail(change: Change) -> Any:
        if change.revision == 2:
            await consumer.close()
        raise ValueError(str(change.model_dump()))

    await consumer.run(fail, max_attempts=1)
    letters = [each async for each in service.consumer(CONSUMER).dead_letters()]
    assert [CANARY in str(each.change) for each in letters] == [True, False]
    return World(service, ("--uri", mongodb_uri, "--database", database))


async def test_a_stream_has_the_events_and_state_of_adks_own_server(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither holds a secret."""
    session = await service.create_session(**WHERE, state=credentials.state())
    await service.append_event(session, credentials.event("Please log in."))
    await service.append_event(session, Event(author="agent"))
    forget_services(monkeypatch)
    (tmp_path / "services.yaml").write_text(SERVICES)
    uri = mongodb_uri.replace("/?", f"/{database}?")
    app = get_fast_api_app(agents_dir=str(tmp_path), session_service_uri=uri, web=False)
    ours = sessions_router(service, authorize=allow_everyone)
    app.include_router(ours, prefix="/ours")
    stream = f"/ours{CHANGES}"
    async with serving(app) as url, Client(f"{url}{stream}", history="all") as client:
        received = await client.take(3)
        async with httpx.AsyncClient(trust_env=False) as http:
            theirs = await http.get(f"{url}/apps/app/users/user/sessions/s")

    # Before 2.12 ADK's own server sent credentials: no example for anybody.
    is_example = hasattr(auth_credential, "_redact_credential_secrets")
    assert (CANARY not in theirs.text) == is_example
    if is_example:
        assert received[0].data["state"] == theirs.json()["state"]
        assert [each.data["event"] for each in received[1:]] == theirs.json()["events"]


@pytest.mark.parametrize("name", OUTLETS)
async def test_no_credential_leaves_the_process(world: World, name: str) -> None:
    """What is shown shows no secret, and is shown."""
    shows, read = OUTLETS[name]

    shown = await read(world)

    assert shows in shown
    assert CANARY not in shown
    assert "__adk_internal_" not in shown
