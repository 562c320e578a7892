"""Redaction in a database: no place keeps the content, and who reads hears of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.cli_runner import call
from support.consumers import begun
from support.encryption_hooks import CANARY, SEALED, canary_event
from support.raw_search import traces_of
from support.subscriptions import Follower
from support.waiting import say

from mongo_session_service import (
    Change,
    MongoSessionService,
    StorageUnavailableError,
)
from mongo_session_service.sessions.fork import Fork
from mongo_session_service.testing import Limits

ADA = {"app_name": "app", "user_id": "user"}
KEY = {**ADA, "session_id": "s"}


async def _fail(change: Change) -> None:
    raise ValueError(str(change.event))


@pytest.mark.parametrize("hooks", [{}, SEALED], ids=["clear", "sealed"])
async def test_no_collection_holds_redacted_text(
    mongodb_uri: str, database: str, admin: MongoClient, hooks: dict[str, Any]
) -> None:
    """Events, states of all scopes, partials and dead letters are scanned as stored."""
    async with MongoSessionService(mongodb_uri, database=database, **hooks) as service:
        session = await service.create_session(**KEY)
        async with service.consumer("failing", start="now") as consumer:
            running = asyncio.create_task(consumer.run(_fail, max_attempts=1))
            await begun(service)
            first = canary_event(**{"user:u": CANARY, "app:a": CANARY, "own": CANARY})
            first.author, first.content.parts[0].function_call.name = "agent", "pay"
            again = first.model_copy(deep=True, update={"id": "again"})
            for event in (first, say("Hi", "i2"), again):
                await service.append_event(session, event)
            async with asyncio.timeout(60):
                while len([it async for it in consumer.dead_letters()]) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            running.cancel()
            said = {"_id": {**KEY, "epoch": 1, "n": 1}, "event": {"id": "again"}}
            admin[database].partials.insert_one({**said, "text": CANARY})
            assert len(set(traces_of(CANARY, admin, database))) == (1 if hooks else 5)
            await service.fork_session(**KEY, new_session_id="t")
            await service.fork_session(**KEY | {"session_id": "t"}, new_session_id="u")
            wanted = {"state": True, "forks": True}
            await service.redact_events(**KEY, event_ids=["again"], **wanted)
            await service.redact_events(**KEY, event_ids=[first.id], **wanted)
            for letter in [it async for it in consumer.dead_letters()]:
                assert CANARY not in str(letter)
                assert letter.change.kind == "appended"
        found = await service.get_session(**KEY)
        assert found is not None
        assert CANARY not in str(found)
        assert set(found.state.values()) == {"[redacted]"}
    assert traces_of(CANARY, admin, database) == []


async def test_an_initial_state_forgets_the_same_value(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """A trim has made it of events that are gone, so no redaction can name them."""
    session = await service.create_session(**KEY, state={"own": "kept", "n": 1})
    for number in range(3):
        event = say(CANARY, f"i{number}")
        event.id, event.actions.state_delta = f"e{number}", {"own": CANARY}
        await service.append_event(session, event)
    await service.trim_session(**KEY, keep_last=1)
    assert set(traces_of(CANARY, admin, database)) == {"sessions", "events"}
    await service.redact_events(**KEY, event_ids=["e2"], state=True)
    assert traces_of(CANARY, admin, database) == []
    past = await service.get_session_at(**KEY, revision=2)
    assert past is not None
    assert past.state == {"own": "[redacted]", "n": 1}


async def test_every_reader_forgets(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """A cache of another process has read it before; who watches receives the rest."""
    limits = Limits(block_events=1)
    async with MongoSessionService(
        mongodb_uri, database=database, _limits=limits
    ) as other:
        session = await service.create_session(**KEY)
        for number in range(5):
            event = say(f"{CANARY} {number}", "i")
            event.id = f"e{number}"
            await service.append_event(session, event)
        for _ in range(2):
            assert CANARY in str(await other.get_session(**KEY))
        async with (
            Follower(other.watch("app")) as follower,
            Follower(other.watch(*KEY.values(), after_revision=0)) as own,
        ):
            await own.reached(5)
            assert await service.redact_events(**KEY, event_ids=["e1", "e3"]) == 2
            await service.append_event(session, say("Go on", "i"))
            await own.reached(6)
            await follower.until(lambda: len(follower.told) == 3)
        assert own.kinds[-3:] == ["redacted", "redacted", "appended"]
        texts = [it.event.content.parts[0].text for it in follower.told]  # type: ignore[union-attr, index]
        assert texts == ["[redacted]", "[redacted]", "Go on"]
        ids = [(it.kind, it.revision, it.event.id) for it in follower.told[:2]]  # type: ignore[union-attr]
        assert ids == [("redacted", None, "e1"), ("redacted", None, "e3")]
        read = await other.get_session(**KEY)
        assert read is not None
        shown = [each.content.parts[0].text for each in read.events]  # type: ignore[union-attr, index]
        assert [CANARY in str(each) for each in shown] == [1, 0, 1, 0, 1, 0]
        # Nobody is told of what was redacted before.
        assert await service.redact_events(**KEY, event_ids=["e1"]) == 0
        async with Follower(other.watch(*KEY.values(), after_revision=0)) as replayed:
            await replayed.reached(6)
        assert replayed.told[1].event == read.events[1]


@pytest.mark.limits(redacted_events=3)
async def test_many_events_take_several_steps(service: MongoSessionService) -> None:
    """What an interrupted call has left is done by the next one."""
    session = await service.create_session(**KEY)
    events = [say(f"{CANARY} {number}", "i") for number in range(7)]
    for event in events:
        await service.append_event(session, event)
    ids = [each.id for each in events]
    assert await service.redact_events(**KEY, event_ids=ids[2:4]) == 2
    assert await service.redact_events(**KEY, invocation_id="i") == 5
    assert CANARY not in str(await service.get_session(**KEY))


async def test_the_redact_command_reports_what_it_removes(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """First a dry run, then the events, by id or by invocation."""
    session = await service.create_session(**KEY)
    events: list[Event] = []
    for number in range(3):
        event = say(CANARY, "i")
        event.actions.state_delta = {f"k{number}": CANARY}
        events.append(await service.append_event(session, event))
    at = ("redact", *KEY.values(), "--uri", mongodb_uri, "--database", database)

    tried = call(*at, events[0].id, "--dry-run")
    assert (
        tried.stderr
        == "Would redact 1 event.\nState has values of them: k0. See --state.\n"
    )
    done = call(*at, events[0].id, "--state")
    assert done.stderr == "Redacted 1 event.\nReplaced in state: k0.\n"
    again = call(*at, events[0].id, "--state")
    assert again.stderr == "Redacted 0 events.\n"
    other = call(*at, events[0].id, "--state", "--replacement", "-")
    assert other.stderr == "Redacted 0 events.\nReplaced in state: k0.\n"
    call(*at, events[0].id, "--state")
    unknown = call(*at, "r1")
    assert "no event with id 'r1'. `mongo-session-service show APP" in unknown.stderr
    await service.fork_session(**KEY, new_session_id="t")
    tried = call(*at, events[1].id, "--dry-run")
    assert tried.stderr.startswith("Copies in forks: 1 event. See --forks.\nWould ")
    tried = call(*at, events[1].id, "--dry-run", "--forks")
    assert tried.stderr.startswith("Would redact 2 events.\n")
    done = call(*at, events[1].id, "--forks")
    assert done.stderr.startswith("Redacted 2 events.\n")
    done = call(*at, "--invocation", "i", "--json")
    assert done.stdout == '{"events": 1, "state_keys": ["k1", "k2"]}\n'
    found = await service.get_session(**KEY)
    assert found is not None
    assert CANARY not in str(found.events)
    assert found.state == {"k0": "[redacted]", "k1": CANARY, "k2": CANARY}
    wrong = call(*at)
    assert (wrong.returncode, "Name events, or an --invocation." in wrong.stderr) == (
        2,
        True,
    )


async def test_a_fork_keeps_no_event_that_is_redacted_meanwhile(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is noticed at the fork's end, which removes the copy."""
    session = await service.create_session(**KEY)
    event = await service.append_event(session, say(CANARY, "i"))
    build = Fork.build_session

    async def build_late(fork: Fork) -> Any:
        await service.redact_events(**KEY, event_ids=[event.id])
        return await build(fork)

    monkeypatch.setattr(Fork, "build_session", build_late)
    with pytest.raises(StorageUnavailableError, match="redacted during the fork"):
        await service.fork_session(**KEY)
    assert traces_of(CANARY, admin, database) == []
