"""Trimming: old events are removed, state and revision stay, and so do ties."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from support.fake_clock import Clock
from support.function_calls import called, responded
from support.one_session import IDS as KEY
from support.one_session import read

from mongo_session_service import (
    InvalidInputError,
    MongoSessionService,
    TrimmedError,
)
from mongo_session_service.sessions import trim

INITIAL = {"a": 0, "b": "initial", "user:u": 0}
SHARED = {"user:u": 3, "app:p": 3}


pytestmark = pytest.mark.limits(page_events=3, removed_events=3)
"""Pages and steps of three events, so that few make many."""


def event(number: int, **fields: Any) -> Event:
    delta = {"n": number, f"k{number % 3}": 2**70, "user:u": 3, "app:p": 3}
    actions = EventActions(state_delta=delta)
    return Event(id=f"e{number}", author="x", actions=actions, **fields)


async def fill(ours: MongoSessionService, count: int = 10, **state: Any) -> Session:
    """A session of so many events, each one second later than the one before."""
    session = await ours.create_session(**KEY, state={**INITIAL, **state})
    for number in range(1, count + 1):
        await ours.append_event(session, event(number, timestamp=float(number)))
    return session


def state_after(revision: int) -> dict[str, Any]:
    state: dict[str, Any] = {"a": 0, "b": "initial", **SHARED}
    for number in range(1, revision + 1):
        state |= {"n": number, f"k{number % 3}": 2**70}
    return state


async def interrupted(*_: Any) -> int:
    """What removes the events of a trim, if its process dies."""
    return 0


@pytest.mark.parametrize("is_interrupted", [False, True])
async def test_old_events_go_and_state_stays(
    ours: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_interrupted: bool,
) -> None:
    """Every reader has the last events alone, the state, and the past since the cut.

    So it is from the cut on, whether the events were removed yet or not.
    """
    padding = {"large": "x" * 10_000} if is_interrupted else {}
    session = await fill(ours, **padding)
    assert (await read(ours)).events == session.events
    with monkeypatch.context() as patching:
        if is_interrupted:
            patching.setattr(trim, "remove_trimmed", interrupted)
        removed = await ours.trim_session(**{**KEY, "session_id": " s "}, keep_last=4)
    assert removed == (0 if is_interrupted else 6)

    kept = session.events[6:]
    stored = await read(ours)
    assert stored.events == kept
    assert stored.state == session.state
    log = [each async for each in ours.iter_events(**KEY)]
    assert log == list(enumerate(kept, 7))
    backwards = [each async for each in ours.iter_events(**KEY, newest_first=True)]
    assert backwards == log[::-1]
    of_user = ours.iter_user_events(app_name="app", user_id="user")
    assert [each async for each in of_user] == [("s", *each) for each in log]
    assert await ours.get_event(**KEY, event_id="e6") is None
    assert await ours.get_event(**KEY, event_id="e7") == kept[0]
    for revision in range(6, 11):
        past = await ours.get_session_at(**KEY, revision=revision)
        assert past is not None
        assert past.events == session.events[6:revision]
        assert past.state == {**state_after(revision), **padding}
    page = await ours.find_sessions(app_name="app")
    assert [(each.revision, each.log_begins) for each in page.sessions] == [(10, 6)]
    assert await ours.trim_session(**KEY, keep_last=4) == 6 - removed


async def test_revisions_before_the_cut_are_refused(ours: MongoSessionService) -> None:
    """Below the cut, there is neither a past nor a fork; the error names the cut."""
    await fill(ours)
    await ours.trim_session(**KEY, before_revision=5)

    for revision in (0, 3):
        with pytest.raises(TrimmedError, match="begins after revision 4") as caught:
            await ours.get_session_at(**KEY, revision=revision)
        assert caught.value.log_begins == 4
        with pytest.raises(InvalidInputError, match="begins after revision 4"):
            await ours.fork_session(**KEY, at_revision=revision)
    with pytest.raises(InvalidInputError, match="was never at 11"):
        await ours.get_session_at(**KEY, revision=11)


async def test_the_criteria(ours: MongoSessionService) -> None:
    """Each removes the oldest alone: by number, revision or age; as was foretold."""
    clock = Clock.set()
    session = await ours.create_session(**KEY)
    for number, age in enumerate([50, 40, 45, 10, 30, 5, 3], start=1):
        at = clock.now - age
        await ours.append_event(session, event(number, timestamp=at))

    async def trimmed(**criterion: Any) -> int:
        foretold = await ours.trim_session(**KEY, **criterion, dry_run=True)
        removed = await ours.trim_session(**KEY, **criterion)
        assert foretold == removed
        return removed

    assert await trimmed(older_than=46) == 1
    assert await trimmed(older_than=timedelta(seconds=20)) == 2
    assert await trimmed(keep_last=4) == 0
    assert await trimmed(keep_last=100) == 0
    assert await trimmed(before_revision=0) == 0
    assert await trimmed(before_revision=4) == 0
    assert await trimmed(before_revision=5) == 1
    assert await trimmed(keep_last=2) == 1
    assert await trimmed(older_than="2s") == 2
    assert (await read(ours)).events == []
    assert (await read(ours)).state == session.state
    assert await trimmed(before_revision=8) == 0
    await ours.append_event(await read(ours), event(8))
    assert [revision async for revision, _ in ours.iter_events(**KEY)] == [8]


async def test_bad_criteria_are_refused(ours: MongoSessionService) -> None:
    """There is exactly one, and a session that has reached it."""
    with pytest.raises(SessionNotFoundError):
        await ours.trim_session(**KEY, keep_last=1)
    await fill(ours, 3)
    for wrong, reason in [
        ({}, "exactly one"),
        ({"keep_last": 1, "older_than": 1}, "exactly one"),
        ({"keep_last": 0}, "keep_last must be a number, 1 or more"),
        ({"keep_last": True}, "keep_last must be a number"),
        ({"before_revision": -1}, "before_revision must be"),
        ({"before_revision": 5}, "must be at most 4"),
        ({"older_than": 0}, "older_than must be more than 0"),
        ({"keep_last": 1, "dry_run": 1}, "dry_run must be"),
        ({"older_than": "1d"}, "older_than must be seconds, a timedelta or text"),
    ]:
        with pytest.raises(InvalidInputError, match=reason):
            await ours.trim_session(**KEY, **wrong)  # type: ignore[arg-type]
    assert len((await read(ours)).events) == 3


async def test_calls_keep_their_responses(ours: MongoSessionService) -> None:
    """No cut comes between a call and its response, or while one may still come."""
    clock = Clock.set()
    session = await ours.create_session(**KEY)
    log = [
        event(1),  # 1
        called("long", long_running=True),  # 2
        responded("long"),  # 3: it is on its way
        called("f", id_="f1"),  # 4
        event(2),  # 5
        responded("f", id_="f1"),  # 6
        called("f", id_="lost"),  # 7
        event(3),  # 8
    ]
    for each in log:
        each.timestamp = clock.now
        await ours.append_event(session, each)

    assert await ours.trim_session(**KEY, keep_last=1) == 1
    clock.now += trim.CALL_LASTS + 1
    assert await ours.trim_session(**KEY, keep_last=1) == 0
    clock.now += trim.LONG_CALL_LASTS
    assert await ours.trim_session(**KEY, before_revision=6) == 2
    assert await ours.trim_session(**KEY, keep_last=1) == 4


async def test_a_cut_keeps_a_rewind_with_the_events_it_undid(
    ours: MongoSessionService,
) -> None:
    """A rewind and what it undid are kept or removed together."""
    session = await ours.create_session(**KEY)
    rewind = EventActions(rewind_before_invocation_id="b")
    for turn in "abbc":
        await ours.append_event(session, Event(author="x", invocation_id=turn))
    await ours.append_event(
        session, Event(author="user", invocation_id="r", actions=rewind)
    )

    assert await ours.trim_session(**KEY, keep_last=1) == 1
    live = [it async for it in ours.iter_events(**KEY, rewound=False)]
    assert live == []
    await ours.append_event(session, Event(author="x", invocation_id="d"))
    assert await ours.trim_session(**KEY, keep_last=1) == 4


async def test_a_rewind_to_a_trimmed_event_is_stale(ours: MongoSessionService) -> None:
    """ADK would pass over it, so it is refused, and nothing is stored."""
    session = await ours.create_session(**KEY)
    for turn in "abc":
        await ours.append_event(session, Event(author="x", invocation_id=turn))
    await ours.trim_session(**KEY, keep_last=1)
    rewind = EventActions(rewind_before_invocation_id="b")

    with pytest.raises(StaleSessionError):
        await ours.append_event(
            session, Event(author="user", invocation_id="r", actions=rewind)
        )
    assert len((await read(ours)).events) == 1


async def test_counts_are_of_events_that_are_there(ours: MongoSessionService) -> None:
    """What pruning and erasing count is what is stored."""
    clock = Clock.behind(60)
    await fill(ours)
    await ours.trim_session(**KEY, keep_last=4)
    await ours.update_session(**KEY, ttl=10)
    clock.catch_up()

    assert (await ours.prune(dry_run=True)).events == 4
    assert (await ours.prune()).events == 4
    await fill(ours)
    await ours.trim_session(**KEY, keep_last=3)
    erased = await ours.delete_user(app_name="app", user_id="user")
    assert (erased.sessions, erased.events) == (1, 3)
