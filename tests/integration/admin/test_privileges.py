"""A real server with access control: what each feature needs, and no more."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import tempfile
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import Context
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.sessions import InMemorySessionService
from google.adk.sessions.session import Session
from google.genai import types
from support.abandoned_turns import abandon_turn
from support.cli_runner import run
from support.consumers import append, begun, create, take
from support.databases import drop
from support.one_session import IDS, read
from support.sample_data import APPS, fill
from support.secured_mongod import Secured
from support.subscriptions import SESSION, new_event

from mongo_session_service import Change, MongoSessionService, NotAuthorizedError
from mongo_session_service.admin.privileges import FEATURES, Privilege, needs
from mongo_session_service.admin.sizes import measure
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.codec.partials import partial_document
from mongo_session_service.transfer import (
    ServiceSource,
    StoreSource,
    export,
    move,
    verify,
)

pytestmark = pytest.mark.xdist_group("secured")

PREFIX = "adk_"
DATABASE = "secured"
IMPLIED = [
    Privilege("createCollection", DATABASE, PREFIX + each)
    for each in ("metadata", "sessions", "events", "partials", "families")
]
"""Who may insert into a collection, or index it, may also create it."""
BESIDES = {
    "sessions": [],
    "changes": ["sessions"],
    "setup": [],
    "import": ["sessions"],
    "erase": ["sessions", "changes"],
    "storage": [],
}
"""What a feature's user is granted as well, because nobody has the feature alone."""


@pytest.fixture
async def clean(server: Secured) -> AsyncIterator[MongoSessionService]:
    """An administrator's service on an empty database that is set up."""
    drop(server.admin, DATABASE)
    uri = server.uri("root")
    async with MongoSessionService(
        uri, database=DATABASE, collection_prefix=PREFIX
    ) as service:
        yield service


def users_service(server: Secured) -> MongoSessionService:
    return MongoSessionService(
        server.uri(), database=DATABASE, collection_prefix=PREFIX
    )


class SilentRunner:
    """A runner whose agent says nothing."""

    app_name = SESSION["app_name"]

    async def run_async(self, **_: object) -> AsyncIterator[Event]:
        """Yield no event."""
        for event in ():
            yield event


class AppendingRunner(SilentRunner):
    """And one whose agent says something."""

    def __init__(self, service: MongoSessionService) -> None:
        self._service = service

    async def run_async(self, **where: Any) -> AsyncIterator[Event]:
        """Yield an event that is stored."""
        key = {"user_id": where["user_id"], "session_id": where["session_id"]}
        event = new_event()
        event.invocation_id = "again"
        await self._service.append(app_name=self.app_name, **key, event=event)
        yield event


async def use_sessions(service: MongoSessionService) -> None:
    session = await service.create_session(**SESSION, state={"k": 1, "app:k": 1})
    await service.append_event(session, new_event("x", k=2, app_k=2, user_k=2))
    copy = Session.model_validate_json(session.model_dump_json())
    await service.append_event(copy, new_event())
    assert len((await service.list_sessions(app_name="app")).sessions) == 1
    assert await service.get_user_state(app_name="app", user_id="user") == {"k": 2}
    stored = await service.get_session(**SESSION)
    assert stored is not None
    assert len(stored.events) == 2
    await service.update_session(**SESSION, title="t", labels={"a": "b"})
    await service.fork_session(**SESSION, at_revision=1, new_session_id="fork")
    page = await service.find_sessions(app_name="app", limit=1)
    await service.find_sessions(
        app_name="app", limit=1, page_token=page.next_page_token
    )
    assert len([each async for each in service.iter_events(**SESSION)]) == 2
    async with service.turn(**SESSION):
        await asyncio.create_task(wait_in_vain(service), context=Context())
    runner: Any = SilentRunner()
    owner = {"user_id": SESSION["user_id"], "session_id": SESSION["session_id"]}
    await (await service.start_turn(runner, **owner)).result()
    runner = AppendingRunner(service)
    await (await service.start_turn(runner, **owner)).result()
    again: Any = {"new_message": types.UserContent("x"), "instead_of": "again"}
    edited = await service.start_turn(runner, **owner, **again)
    await edited.result()
    await service.delete_session(**SESSION | {"session_id": edited.session_id})
    await service.delete_session(**SESSION)
    await service.prune()


async def wait_in_vain(service: MongoSessionService) -> None:
    """Wait for a turn that is not released in time."""
    with pytest.raises(TimeoutError):
        async with service.turn(**SESSION, wait=0.3):
            pass


async def use_changes(service: MongoSessionService) -> None:
    name = uuid.uuid4().hex
    session = await create(service, name)
    async with service.watch("app", "user", name) as changes:
        await append(service, session)
        assert [(await anext(changes)).kind for _ in range(2)] == [
            "snapshot",
            "appended",
        ]

    async def fail(_: Change) -> None:
        raise RuntimeError

    async with service.consumer(name, start="now") as consumer:
        await begun(service)
        await append(service, session, 2)
        running = asyncio.create_task(consumer.run(fail, max_attempts=1))
        buried = asyncio.create_task(letters(service, name, 2))
        await asyncio.wait([running, buried], return_when="FIRST_COMPLETED")
        buried.cancel()
    await running
    await service.consumer(name).replay_dead_letters(fail)
    assert await service.consumer(name).replay_dead_letters(lambda _: None) == 2
    async with service.consumer(name) as consumer:
        await append(service, session)
        await take(consumer, 1, commit=True)
    ids = [session.events[0].id]
    key = {"app_name": "app", "user_id": "user", "session_id": name}
    assert await service.redact_events(**key, event_ids=ids) == 1


async def letters(service: MongoSessionService, name: str, count: int) -> None:
    # No signal comes from the server.
    while len([x async for x in service.consumer(name).dead_letters()]) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def use_setup(service: MongoSessionService) -> None:
    await service.setup()


async def use_storage(service: MongoSessionService) -> None:
    for app_name in (None, "app"):
        await measure(service, app_name)


async def use_import(service: MongoSessionService) -> None:
    old = InMemorySessionService()
    await fill(old)
    for _ in range(2):
        async with ServiceSource(old, APPS) as source:
            await move(source, service)
        session = await old.get_session(app_name="bank", user_id="ada", session_id="s1")
        await old.append_event(session, new_event())
    async with ServiceSource(old, APPS) as source, StoreSource(service) as target:
        await verify(source, target)
        with tempfile.TemporaryDirectory() as folder:
            await export(target, f"{folder}/sessions.jsonl")


async def use_erase(service: MongoSessionService) -> None:
    await service.create_session(**SESSION, state={"app:k": 1, "user:k": 1})
    erased = await service.delete_user(app_name="app", user_id="user")
    assert (erased.sessions, erased.user_states) == (1, 1)
    assert (await service.delete_app(app_name="app")).app_states == 1


USES: dict[str, Callable[[MongoSessionService], Awaitable[None]]] = {
    "sessions": use_sessions,
    "changes": use_changes,
    "setup": use_setup,
    "import": use_import,
    "erase": use_erase,
    "storage": use_storage,
}


@pytest.mark.parametrize("feature", FEATURES)
async def test_a_feature_needs_no_more_than_is_granted_for_it(
    server: Secured,
    clean: MongoSessionService,
    feature: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With its own privileges everything in a feature works, without a warning."""
    if feature == "setup":
        drop(server.admin, DATABASE)
    server.grant(needs([*BESIDES[feature], feature], DATABASE, PREFIX))
    service = users_service(server)

    with caplog.at_level(logging.WARNING, "mongo_session_service"):
        await USES[feature](service)

    await service.close()
    await clean.close()
    kept = [each for each in caplog.messages if "dead letter" not in each]
    assert kept == []


@pytest.mark.daily(21)
@pytest.mark.parametrize(
    ("feature", "privilege"),
    [
        pytest.param(feature, each, id=f"{feature}: {each.action} {each.collection}")
        for feature in FEATURES
        for each in needs([feature], DATABASE, PREFIX)
        if each.database == DATABASE and each not in IMPLIED
    ],
)
async def test_an_error_for_a_missing_privilege_names_the_refused_command(
    server: Secured,
    clean: MongoSessionService,
    feature: str,
    privilege: Privilege,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without any one of its privileges, a feature names what failed and the remedy."""
    if feature == "setup":
        drop(server.admin, DATABASE)
    granted = needs([*BESIDES[feature], feature], DATABASE, PREFIX)
    server.grant(each for each in granted if each != privilege)
    service = users_service(server)

    said = ""
    try:
        await USES[feature](service)
    except NotAuthorizedError as error:
        said = str(error)
    finally:
        await service.close()
        await clean.close()

    said += caplog.text
    assert re.search(rf"MongoDB refused '\w+' on '{DATABASE}", said)
    assert "mongo-session-service grants" in said


@pytest.mark.parametrize("more", [[], ["changes"]])
async def test_an_abandoned_turn_is_taken_over_with_the_role_for_sessions(
    server: Secured, more: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its calls are answered; its end is delivered where partials may be read."""
    drop(server.admin, DATABASE)
    async with MongoSessionService(server.uri("root"), database=DATABASE) as service:
        await service.create_session(**IDS)
        await abandon_turn(service, DATABASE, server.admin)
        (turn,) = await service.find_turns()
    said = server.admin[DATABASE].partials
    running = turn._replace(status="running")
    said.insert_one(partial_document(running, 1, turn.since, None, NO_HOOKS))
    server.grant(needs(["sessions", *more], DATABASE))

    async with (
        MongoSessionService(server.uri(), database=DATABASE) as service,
        service.turn(**IDS) as session,
    ):
        await service.append_event(session, Event(author="next"))
        stored = await read(service)
    answers = [len(each.get_function_responses()) for each in stored.events]
    assert answers == [0, 1, 0]
    (repair,) = caplog.messages  # and no warning of a privilege that is missing
    assert "has died. The turn has ended." in repair
    told = [(each["status"], each.get("reason")) for each in said.find()]
    died = ("abandoned", "its process died")
    assert told == [("running", None), *([died] if more else [])]


async def test_privileges_of_the_feed_suffice_to_measure_the_oplog(
    server: Secured, clean: MongoSessionService
) -> None:
    """With them the doctor reports how far the oplog reaches."""
    server.grant(needs(["sessions", "changes"], DATABASE, PREFIX))

    async with clean, users_service(server) as service, service.watch("app"):
        async with asyncio.timeout(60):  # it is, soon after the stream was opened
            while service.feed_stats().oplog_window_seconds is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


def test_the_server_accepts_the_printed_role(server: Secured) -> None:
    """``grants --json`` prints it, without asking a server."""
    options = ["--database", "cli", "--prefix", PREFIX, "--role", "printed", "--json"]
    printed = run("grants", *options, "--for", "import")

    server.admin.admin.command(json.loads(printed.stdout))

    asked = {"role": "printed", "db": "admin"}
    (made,) = server.admin.admin.command("rolesInfo", asked, showPrivileges=True)[
        "roles"
    ]
    held = made["privileges"]
    assert [each["resource"]["collection"] for each in held] == ["adk_imports"]
    assert all(each.is_among(held) for each in needs(["import"], "cli", PREFIX))
