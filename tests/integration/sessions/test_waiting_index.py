"""Waiting calls in a database: what they cost, and who receives them."""

from __future__ import annotations

import random
import re
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import InMemorySessionService
from pymongo import AsyncMongoClient, MongoClient
from support.command_log import CommandsSent
from support.fake_clock import Clock
from support.subscriptions import Follower
from support.waiting import answer, ask, say

from mongo_session_service import MongoSessionService, WaitingCall
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.model.records import SessionKey
from mongo_session_service.service import backends_of
from mongo_session_service.sessions.event_log import LogAtRevision
from mongo_session_service.sessions.reads import read_head
from mongo_session_service.sessions.waiting_log import pending_calls_at
from mongo_session_service.transfer import ServiceSource, move

ADA = {"app_name": "app", "user_id": "ada"}
KEY = {**ADA, "session_id": "s"}


async def append(service: Any, *events: Event) -> None:
    session = await service.get_session(**KEY)
    for event in events:
        await service.append_event(session, event)


async def waiting(service: MongoSessionService) -> dict[str, list[str]]:
    page = await service.find_sessions(**ADA, waiting=True)
    return {each.id: [it.call_id for it in each.waiting] for each in page.sessions}


async def test_calls_are_sealed_as_events_are(
    sealed: MongoSessionService, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Hooks seal what a call is named by; without them it is known to wait."""
    await sealed.create_session(**KEY)
    await append(sealed, asked := ask("c1"))
    (found,) = (await sealed.find_sessions(**ADA, waiting=True)).sessions
    since = {"since": asked.timestamp, "revision": 1}
    call = WaitingCall(call_id="c1", name="ship", author="clerk", **since)
    assert found.waiting == (call,)

    async with MongoSessionService(mongodb_uri, database=database) as blind:
        page = await blind.find_sessions(**ADA, waiting=True, with_state=False)
    (found,) = page.sessions
    call = WaitingCall(call_id="", name=None, author=None, **since)
    assert found.waiting == (call,)
    for each in admin[database].sessions.find(), admin[database].events.find():
        assert not {"c1", "ship", "clerk"} & {*re.findall(r"\w+", str([*each]))}


async def test_only_calls_and_responses_cost_a_read(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """Any other append sends what it has always sent."""
    await service.create_session(**KEY)
    sent = CommandsSent()
    async with AsyncMongoClient(mongodb_uri, event_listeners=[sent]) as client:
        borrowing = MongoSessionService(client=client, database=database)
        await borrowing.setup()
        for event, reads in (say("Hi", "i1"), 0), (ask("c1"), 1), (answer("c1"), 1):
            session = await borrowing.get_session(**KEY)
            assert session is not None
            sent.clear()
            await borrowing.append_event(session, event)
            writes = ["update", "insert", "commitTransaction"]
            assert sent.names == ["find"] * reads + writes


async def test_watchers_receive_the_waiting_calls(service: MongoSessionService) -> None:
    """The change that makes or ends a wait holds them; no other does."""
    clock = Clock.set()
    await service.create_session(**KEY)
    async with Follower(service.watch("app")) as follower:
        await append(service, say("Ship", "i1"), ask("c1"), ask("c2"))
        await append(service, say("Hello?", "i2"), answer("c2"), say("Thanks", "i2"))
        await service.fork_session(**KEY, new_session_id="fork")
        clock.now += 40 * 86400
        await service.trim_session(**KEY, keep_last=1)
        await follower.until(lambda: "updated" in follower.kinds)

    told = [
        (each.kind, each.revision, [it.call_id for it in each.waiting])
        for each in follower.told
        if each.waiting is not None and each.session_id == "s"
    ]
    assert told == [
        ("appended", 2, ["c1"]),
        ("appended", 3, ["c1", "c2"]),
        ("appended", 5, ["c1"]),
        ("updated", None, []),
    ]
    (created,) = (each for each in follower.told if each.kind == "created")
    assert created.waiting
    assert [each.call_id for each in created.waiting] == ["c1"]
    assert await waiting(service) == {"fork": ["c1"]}


async def test_a_sessions_waiting_calls_are_those_of_its_log(
    service: MongoSessionService,
) -> None:
    """Whatever is asked, answered, rewound, trimmed and forked, both agree."""
    chosen = random.Random(5)  # noqa: S311  no secret
    ids = [f"c{number}" for number in range(6)]
    key = SessionKey(**KEY)
    await service.create_session(**KEY)
    for number in range(1, 121):
        turn = f"i{number // 4}"
        some = chosen.sample(ids, chosen.randint(1, 3))
        session = await service.get_session(**KEY)
        assert session is not None
        turns = [each.invocation_id for each in session.events] or [turn]
        actions = EventActions(rewind_before_invocation_id=chosen.choice(turns))
        event = chosen.choice(
            [
                *(ask(*some, turn=turn), answer(*some, turn=turn), say("Hi", turn)),
                Event(author="user", invocation_id=turn, actions=actions),
            ]
        )
        await service.append_event(session, event)
        if number % 40 == 0:
            await service.trim_session(**KEY, keep_last=25)
            fork = {"new_session_id": f"f{number}", "at_revision": number - 3}
            await service.fork_session(**KEY, **fork)
        forks = [f"f{it}" for it in range(40, number + 1, 40) if number % 40 == 0]
        backend = await backends_of(service).backend()
        for each in "s", *forks:
            one = key._replace(session_id=each)
            head = await read_head(backend.storage, one)
            log = await pending_calls_at(backend.storage, LogAtRevision.of(head))
            assert head.waiting(Hooks()) == log
    assert await waiting(service)


async def test_an_import_waits_as_its_source(service: MongoSessionService) -> None:
    """Moved whole, or caught up, a session waits for what its log asks."""
    old = InMemorySessionService()
    await old.create_session(**KEY)
    await append(old, ask("c1"), ask("c2"))
    await move(ServiceSource(old, ["app"]), service)
    assert await waiting(service) == {"s": ["c1", "c2"]}

    await append(old, answer("c1"), ask("c3"))
    await move(ServiceSource(old, ["app"]), service)
    assert await waiting(service) == {"s": ["c2", "c3"]}
    await append(old, answer("c2", "c3"))
    await move(ServiceSource(old, ["app"]), service)
    assert await waiting(service) == {}
