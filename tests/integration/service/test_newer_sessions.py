"""A session of a later release, beside sessions of this one: it alone is refused."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService, Session
from pymongo import MongoClient
from support.scripted_model import ScriptedModel
from support.subscriptions import IDS, PATIENCE, Follower, new_event
from support.waiters import in_line

from mongo_session_service import (
    Change,
    MongoSessionService,
    SchemaVersionError,
)
from mongo_session_service.transfer import (
    ConflictError,
    Policies,
    ServiceSource,
    StoreSource,
    export,
    move,
    verify,
)

NEED = "time travel"
NEWER = {**IDS, "session_id": "newer"}
NOW = {**IDS, "session_id": "now"}
Ask = Callable[[MongoSessionService, Session], Awaitable[Any]]


@pytest.fixture
async def newer(
    service: MongoSessionService, admin: MongoClient, database: str
) -> Session:
    """A session as it was loaded before a later release gave it a need."""
    for ids in (NOW, NEWER):
        session = await service.create_session(**ids)
        await service.append_event(session, new_event(n=1))
    give_need(admin, database, "newer")
    return session


def give_need(admin: MongoClient, database: str, session_id: str) -> None:
    """Do what a later release does."""
    for collection in ("sessions", "events"):
        admin[database][collection].update_many(
            {"_id.session_id": session_id}, {"$set": {"needs": [NEED]}}
        )


@contextmanager
def untouched(admin: MongoClient, database: str) -> Iterator[None]:
    """Nothing of the later release's session changes in the block."""

    def stored() -> list[list[dict[str, Any]]]:
        wanted = {"_id.session_id": "newer"}
        return [
            [*admin[database][each].find(wanted, sort=[("_id", 1)])]
            for each in ("sessions", "events")
        ]

    before = stored()
    yield
    assert stored() == before


async def drained(items: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in items]


async def in_turn(service: MongoSessionService, _: Session) -> None:
    async with service.turn(**NEWER, wait=0):
        pass


async def take_turn(service: MongoSessionService, _: Session | None = None) -> None:
    async with service.turn(**NEWER):
        pass


async def watched(service: MongoSessionService, _: Session) -> None:
    async with service.watch(**NEWER) as changes:
        await anext(changes)


def runner(service: MongoSessionService) -> Runner:
    agent = LlmAgent(name="agent", model=ScriptedModel(script=["x"]))
    return Runner(app_name="app", agent=agent, session_service=service)


ARGUMENTS = {"user_id": "user", "session_id": "newer"}

REFUSED: dict[str, Ask] = {
    "append": lambda it, _: it.append(**NEWER, event=Event(author="x")),
    "append_event": lambda it, old: it.append_event(old, Event(author="x")),
    "append_event, of JSON": lambda it, old: it.append_event(
        Session.model_validate_json(old.model_dump_json()), Event(author="x")
    ),
    "delete_session": lambda it, _: it.delete_session(**NEWER),
    "delete_user": lambda it, _: it.delete_user(**IDS),
    "delete_app": lambda it, _: it.delete_app(app_name="app"),
    "find_branches": lambda it, _: it.find_branches(**NEWER),
    "fork_session": lambda it, _: it.fork_session(**NEWER),
    "get_event": lambda it, old: it.get_event(**NEWER, event_id=old.events[0].id),
    "get_session": lambda it, _: it.get_session(**NEWER),
    "get_session_at": lambda it, _: it.get_session_at(**NEWER, revision=1),
    "iter_events": lambda it, _: drained(it.iter_events(**NEWER)),
    "iter_events, live": lambda it, _: drained(it.iter_events(**NEWER, rewound=False)),
    "redact_events": lambda it, old: it.redact_events(
        **NEWER, event_ids=[old.events[0].id]
    ),
    "run_turn": lambda it, _: drained(it.run_turn(runner(it), **ARGUMENTS)),
    "start_turn": lambda it, _: it.start_turn(runner(it), **ARGUMENTS),
    "start_turn, edited": lambda it, _: it.start_turn(
        runner(it), **ARGUMENTS, instead_of="x"
    ),
    "show_branch": lambda it, _: it.show_branch(**NEWER),
    "stop_turn": lambda it, _: it.stop_turn(**NEWER),
    "trim_session": lambda it, _: it.trim_session(**NEWER, keep_last=1),
    "turn": in_turn,
    "turn, in line": take_turn,
    "update_session": lambda it, _: it.update_session(**NEWER, title="x"),
    "wait_for": lambda it, _: it.wait_for(**NEWER, predicate=lambda _: True),
    "watch": watched,
}
"""Calls for the session, by the method's name: each names the need."""


async def listed_ids(service: MongoSessionService) -> list[str]:
    return [each.id for each in (await service.list_sessions(**IDS)).sessions]


async def paged_ids(service: MongoSessionService) -> list[str]:
    page = await service.list_sessions(**IDS, page_size=5)
    return [each.id for each in page.sessions]


async def found_ids(service: MongoSessionService, **how: Any) -> list[str]:
    return [each.id for each in (await service.find_sessions(**IDS, **how)).sessions]


async def user_log(service: MongoSessionService) -> list[str]:
    return [each async for each, *_ in service.iter_user_events(**IDS)]


async def idle_count(service: MongoSessionService) -> list[str]:
    assert (await service.prune(idle_for=1e-3)).sessions == 1
    return ["now"]


LISTS: dict[str, Callable[[MongoSessionService], Awaitable[list[str]]]] = {
    "list_sessions": listed_ids,
    "list_sessions, a page": paged_ids,
    "find_sessions": found_ids,
    "find_sessions, with state": lambda it: found_ids(it, with_state=True),
    "iter_user_events": user_log,
    "prune": idle_count,
}
"""Methods that leave it out, and warn."""

OTHERS = {
    *("close", "flush", "ping", "setup", "feed_stats", "consumers"),  # of no session
    *("create_session", "get_user_state"),  # its id is taken; state is not its own
    *("consumer", "find_turns", "recover_turns"),  # below
}


def test_every_method_is_tried() -> None:
    """A new one is refused, or leaves the session out, or is named here."""
    methods = {
        name
        for name, _ in inspect.getmembers(MongoSessionService, inspect.isfunction)
        if not name.startswith("_") and name in vars(MongoSessionService)
    }
    tried = {each.partition(",")[0] for each in (*REFUSED, *LISTS)}
    assert methods == tried | OTHERS


@pytest.mark.parametrize("name", REFUSED)
async def test_each_call_for_it_names_what_it_needs(
    service: MongoSessionService,
    newer: Session,
    admin: MongoClient,
    database: str,
    name: str,
) -> None:
    """It changes nothing of it, and the others stay as they are."""
    refused = pytest.raises(SchemaVersionError, match=NEED)
    with untouched(admin, database), refused as raised:
        await REFUSED[name](service, newer)

    assert "Upgrade mongo-session-service" in str(raised.value)
    if not name.startswith("delete_"):  # which removes the others first
        assert await service.get_session(**NOW) is not None


@pytest.mark.parametrize("needs", [None, [], [NEED], "", 0, {}])
async def test_reads_and_writes_take_the_same_for_no_needs(
    service: MongoSessionService, admin: MongoClient, database: str, needs: Any
) -> None:
    """Null and an empty list are none, whoever has written them."""
    session = await service.create_session(**NEWER)
    change = {"$set": {"needs": needs}}
    admin[database].sessions.update_one({"_id": NEWER}, change)

    calls: list[Awaitable[Any]] = [
        service.get_session(**NEWER),
        service.append_event(session, new_event(n=1)),
        service.update_session(**NEWER, title="x"),
        service.delete_session(**NEWER),
    ]
    done = await asyncio.gather(*calls, return_exceptions=True)

    refused = [isinstance(each, SchemaVersionError) for each in done]
    assert refused == [needs not in (None, [])] * len(calls)


@pytest.mark.parametrize("needs", [None, []])
async def test_what_needs_nothing_expires(
    service: MongoSessionService, admin: MongoClient, database: str, needs: Any
) -> None:
    """Pruning removes it, and what is beside it; its id is free."""
    for key in NEWER, NOW:
        await service.create_session(**key, ttl=60)
    change = {"$set": {"needs": needs, "expire_time": 1.0}}
    admin[database].sessions.update_many({}, change)
    assert (await service.prune()).sessions == 2
    await service.create_session(**NEWER)


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.usefixtures("newer")
async def test_lists_leave_it_out_with_a_warning(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    """They show all others."""
    with untouched(admin, database):
        assert await LISTS[name](service) == ["now"]

    (warning,) = {each.message for each in caplog.records}
    assert NEED in warning


@pytest.mark.usefixtures("newer")
async def test_turns_of_it_are_not_listed_nor_recovered(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Who runs there may do what this release does not understand."""
    async with service.turn(**NOW):
        turn = admin[database].sessions.find_one({"_id": NOW})["turn"]
        admin[database].sessions.update_one({"_id": NEWER}, {"$set": {"turn": turn}})
        assert [each.session_id for each in await service.find_turns()] == ["now"]
    assert NEED in caplog.text


@pytest.mark.usefixtures("newer")
async def test_what_expires_of_it_is_left_to_the_release_that_knows_it(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Neither sweep nor prune removes it, and its id is not free."""
    for ids in (NOW, NEWER):
        over = {"$set": {"expire_time": 1.0}}
        admin[database].sessions.update_one({"_id": ids}, over)

    with untouched(admin, database):
        assert (await service.prune()).sessions == 1
        with pytest.raises(Exception, match="already exists"):
            await service.create_session(**NEWER)


async def test_one_that_comes_late_to_a_batch_fails_alone(
    service: MongoSessionService, newer: Session
) -> None:
    """The writer's others are stored in the same moment."""
    now = await service.get_session(**NOW)
    assert now is not None
    appends = [service.append_event(each, Event(author="x")) for each in (now, newer)]

    one, other = await asyncio.gather(*appends, return_exceptions=True)

    assert isinstance(one, Event)
    assert isinstance(other, SchemaVersionError)


async def test_an_append_in_a_turn_that_began_before_is_refused(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """The turn itself can be released."""
    await service.create_session(**NEWER)
    async with service.turn(**NEWER) as session:
        give_need(admin, database, "newer")
        with pytest.raises(SchemaVersionError, match=NEED):
            await service.append_event(session, Event(author="x"))
    stored = admin[database].sessions.find_one({"_id": NEWER})
    assert "holder" not in stored["turn"]


async def test_who_waits_for_its_turn_waits_no_longer(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """They receive the error as soon as a later release has given it a need."""
    await service.create_session(**NEWER)
    async with service.turn(**NEWER):
        waiting = asyncio.create_task(take_turn(service), context=Context())
        await in_line(service, 1)
        async with asyncio.timeout(PATIENCE):
            give_need(admin, database, "newer")
            with pytest.raises(SchemaVersionError, match=NEED):
                await waiting


@pytest.mark.usefixtures("newer")
async def test_subscribers_receive_its_changes_without_content(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Those of others arrive as ever."""
    event = admin[database].events.find_one({"_id.session_id": "newer"})
    event["_id"]["revision"] = 2
    event["event"]["id"] = "later"
    async with Follower(service.watch(**IDS)) as follower:
        admin[database].events.insert_one(event)
        await service.append(**NOW, event=new_event(n=2))
        await follower.until(lambda: len(follower.told) == 2)

    of_newer, of_now = follower.told
    assert (of_newer.session_id, of_newer.revision, of_newer.event) == (
        "newer",
        2,
        None,
    )
    assert of_now.state_delta == {"n": 2}
    assert NEED in caplog.text


@pytest.mark.usefixtures("newer")
async def test_consumers_keep_its_changes_as_dead_letters(
    service: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """At once; a later release replays them, and those of others are handled."""
    handled: list[str | None] = []

    async def handle(change: Change) -> None:
        handled.append(change.session_id)

    async with service.consumer("all", start="beginning") as consumer:
        await consumer.run(handle, until_caught_up=True)
        letters = [each async for each in consumer.dead_letters()]

    assert handled == ["now"]
    assert "its handler failed 1 time, last" in caplog.text
    (letter,) = letters
    assert (letter.id["session_id"], letter.attempts) == ("newer", 1)
    with pytest.raises(SchemaVersionError, match=NEED):
        _ = letter.change


@pytest.mark.usefixtures("newer")
async def test_exports_report_it_and_moves_leave_it_out(
    service: MongoSessionService, tmp_path: Path
) -> None:
    """What is written has all others."""
    file, problems = tmp_path / "all.jsonl", list[str]()
    async with StoreSource(service) as source:
        done = await export(
            source, file, on_problem=lambda each: problems.append(str(each))
        )
    assert (done.sessions, done.problems) == (1, 1)
    assert NEED in problems[0]
    assert '"session_id": "now"' in file.read_text()


@pytest.mark.usefixtures("newer")
async def test_an_import_leaves_it_alone(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """It is a conflict."""
    old = InMemorySessionService()
    for ids in (NOW, NEWER):
        await old.create_session(**ids)
    problems: list[str] = []
    async with ServiceSource(old, ["app"]) as source:
        with untouched(admin, database):
            with pytest.raises(ConflictError):
                await move(source, service)
            done = await move(
                source,
                service,
                policies=Policies(on_conflict="skip"),
                on_problem=lambda each: problems.append(str(each)),
            )
            async with StoreSource(service) as target:
                verified = await verify(source, target)
    assert done.skipped == 1
    assert NEED in problems[0]
    assert verified.differences
