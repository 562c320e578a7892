"""Second writers: what they have missed is brought in, and nothing is torn apart."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient
from support.failpoints import failing
from support.function_calls import called, responded
from support.one_session import IDS, authors, read
from support.subscriptions import new_event

from mongo_session_service import MongoSessionService, StorageError, UnknownOutcomeError


async def test_a_late_append_brings_in_the_missed_events(
    second: MongoSessionService,
) -> None:
    """It is stored after them; its session shows them, and state, too."""
    theirs = await second.create_session(**IDS, state={"k": 0, "user:k": 0})
    mine = await read(second)
    mine.state["temp:draft"] = "kept"
    for number in range(3):
        await second.append_event(theirs, new_event("them", k=number, app_k=number))
    other = await second.create_session(app_name="app", user_id="user")
    await second.append_event(other, new_event("other", user_k="elsewhere"))
    event = new_event("me", mine=True, **{"temp:seen": 1})

    assert await second.append_event(mine, event) is event

    stored = await read(second)
    assert authors(stored) == ["them", "them", "them", "me"]
    assert stored.events == mine.events
    assert stored.last_update_time == mine.last_update_time
    expected = {"k": 2, "app:k": 2, "user:k": "elsewhere", "mine": True}
    assert stored.state == expected
    assert mine.state == {**expected, "temp:draft": "kept", "temp:seen": 1}
    await second.append_event(mine, new_event("me"))
    assert (await read(second)).events == mine.events


async def test_a_response_comes_right_after_its_call(
    second: MongoSessionService,
) -> None:
    """Who comes between is refused, unchanged, whether he knows of the call or not."""
    running = await second.create_session(**IDS)
    late = await read(second)
    await second.append_event(running, called("a"))
    early = await read(second)
    others = {"late": late, "early": early}
    before = {name: it.model_copy(deep=True) for name, it in others.items()}

    for name, session in others.items():
        with pytest.raises(StaleSessionError, match="no response yet"):
            await second.append_event(session, Event(author=name, invocation_id=name))
    assert others == before
    await second.append_event(running, responded("a"))
    for name, session in others.items():
        await second.append_event(session, Event(author=name, invocation_id=name))

    stored = await read(second)
    assert authors(stored) == ["agent", "agent", "late", "early"]
    assert early.events == stored.events


async def test_of_two_runs_of_a_turn_one_goes_on(second: MongoSessionService) -> None:
    """A response given by another run, or its calls, are not given a second time."""
    first = await second.create_session(**IDS)
    await second.append_event(first, called("a"))
    resumed = await read(second)
    await second.append_event(first, responded("a"))

    with pytest.raises(StaleSessionError, match="Another run"):
        await second.append_event(resumed, responded("a"))

    resumed = await read(second)
    await second.append_event(first, called("b"))
    await second.append_event(first, responded("b"))
    with pytest.raises(StaleSessionError, match="Another run"):
        await second.append_event(resumed, called("c"))
    assert (await read(second)).events == first.events


async def test_only_the_same_session_is_gone_on_with(
    second: MongoSessionService,
) -> None:
    """A deleted session is not found, and one made anew is another."""
    await second.create_session(**IDS)
    old = await read(second)
    await second.delete_session(**IDS)
    with pytest.raises(SessionNotFoundError):
        await second.append_event(old, new_event())
    await second.create_session(**IDS)

    with pytest.raises(StaleSessionError):
        await second.append_event(old, new_event())

    assert (await read(second)).events == old.events == []


async def test_a_rewind_is_not_rebased(second: MongoSessionService) -> None:
    """A rewind that was computed from an older log is refused."""
    theirs = await second.create_session(**IDS)
    mine = await read(second)
    await second.append_event(theirs, new_event())
    rewind = EventActions(rewind_before_invocation_id="i")

    with pytest.raises(StaleSessionError):
        await second.append_event(mine, Event(author="user", actions=rewind))

    assert len((await read(second)).events) == 1


async def test_sessions_from_json_are_brought_up_to_date(
    second: MongoSessionService,
) -> None:
    """One that ends with an event of the log goes on; one without events cannot."""
    theirs = await second.create_session(**IDS)
    empty = Session.model_validate_json(theirs.model_dump_json())
    await second.append_event(theirs, new_event("first"))
    mine = Session.model_validate_json(theirs.model_dump_json())
    await second.append_event(theirs, new_event("second", k=1))

    await second.append_event(mine, new_event("me"))
    with pytest.raises(StaleSessionError):
        await second.append_event(empty, new_event())

    assert mine.events == (await read(second)).events
    assert authors(mine) == ["first", "second", "me"]


@pytest.mark.parametrize("command", ["update", "insert", "commitTransaction"])
async def test_a_failed_rebase_changes_nothing(
    second: MongoSessionService, admin: MongoClient[Any], command: str
) -> None:
    """When a late append fails, its session has not moved either, and can try again."""
    theirs = await second.create_session(**IDS)
    mine = await read(second)
    await second.append_event(theirs, new_event("them", k=1))
    before = mine.model_copy(deep=True)

    with failing(admin, command, errorCode=2), pytest.raises(StorageError):
        await second.append_event(mine, new_event())

    assert mine == before
    await second.append_event(mine, new_event("me"))
    assert authors(mine) == ["them", "me"]


async def test_a_late_event_of_unknown_outcome_is_shown_in_its_place(
    second: MongoSessionService, admin: MongoClient[Any]
) -> None:
    """Tried again, it is found among what was missed, before and after it."""
    theirs = await second.create_session(**IDS)
    mine = await read(second)
    await second.append_event(theirs, new_event("before", k=1))
    event = new_event("me", k=2, **{"temp:seen": 1})
    unsure = {"writeConcernError": {"code": 100, "errmsg": "not enough members"}}
    # The first is of the transaction that tells that the session has moved on.
    with (
        failing(admin, "commitTransaction", skip=1, **unsure),
        pytest.raises(UnknownOutcomeError),
    ):
        await second.append_event(mine, event)
    assert mine.events == []
    await second.append_event(theirs, new_event("after", k=3))

    await second.append_event(mine, event)

    assert authors(mine) == ["before", "me", "after"]
    assert mine.events[1] is event
    stored = await read(second)
    assert mine.events == stored.events
    assert mine.last_update_time == stored.last_update_time
    assert mine.state == {**stored.state, "temp:seen": 1} == {"k": 3, "temp:seen": 1}
    await second.append_event(mine, new_event("last"))
    assert mine.events == (await read(second)).events


async def test_a_call_without_response_holds_nobody_up_for_long(
    second: MongoSessionService,
) -> None:
    """After ten seconds, who has read it goes on: its writer may be dead."""
    crashed = await second.create_session(**IDS)
    mine = await read(second)
    for age in (0, 5, 11):
        call = called(f"{age}")
        call.timestamp -= age
        await second.append_event(crashed, call)
        with pytest.raises(StaleSessionError, match="no response yet"):
            await second.append_event(mine, new_event("mine"))
    assert mine.events == []

    reloaded = await read(second)
    await second.append_event(reloaded, new_event("me"))

    assert authors(await read(second)) == ["agent", "agent", "agent", "me"]
