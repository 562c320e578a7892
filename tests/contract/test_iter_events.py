"""Reading the log of events, of a session and of a user."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from support.fake_clock import Clock

from mongo_session_service import InvalidInputError, MongoSessionService

ADA = {"app_name": "app", "user_id": "ada"}
SESSION = {**ADA, "session_id": "s"}


pytestmark = pytest.mark.limits(page_events=3)
"""Pages of three events, so that few make many pages."""


async def fill(
    service: MongoSessionService, count: int = 8, session_id: str = "s", **details: Any
) -> list[Event]:
    """Create a session with so many events."""
    session = await service.create_session(**ADA, session_id=session_id, **details)
    for number in range(count):
        actions = EventActions(state_delta={"n": number, "$.big": 2**70})
        event = Event(id=f"{session_id}{number}", author="x", actions=actions)
        await service.append_event(session, event)
    return session.events


async def revisions(service: MongoSessionService, **span: Any) -> list[int]:
    return [revision async for revision, _ in service.iter_events(**SESSION, **span)]


async def test_all_events_come_in_order(ours: MongoSessionService) -> None:
    """Every event comes with its revision, equal to the one that was appended."""
    events = await fill(ours)
    await fill(ours, 2, "s2")
    await fill(ours, 2, "r")

    told = [each async for each in ours.iter_events(**SESSION)]

    assert told == list(enumerate(events, 1))
    backwards = ours.iter_events(**SESSION, newest_first=True)
    assert [each async for each in backwards] == told[::-1]


async def test_a_part_of_the_log(ours: MongoSessionService) -> None:
    """Revisions and a limit choose a part, in either direction; pages do not show."""
    await fill(ours)

    for after, before, limit in [
        (0, None, None),
        (0, None, 0),
        (0, None, 3),
        (0, None, 4),
        (3, None, None),
        (8, None, None),
        (9, None, None),
        (2, 7, None),
        (2, 7, 3),
        (0, 1, None),
        (5, 3, None),
        (1, 2**63 - 1, 2**63 - 1),
    ]:
        span = {"after_revision": after, "before_revision": before, "limit": limit}
        whole = [each for each in range(1, 9) if after < each < (before or 99)]
        assert await revisions(ours, **span) == whole[:limit]
        newest = await revisions(ours, **span, newest_first=True)
        assert newest == whole[::-1][:limit]


async def test_events_appended_meanwhile_come_too(ours: MongoSessionService) -> None:
    """A reader forwards receives what is appended while it reads; backwards not."""
    await fill(ours, 4)
    session = await ours.get_session(**SESSION)
    assert session is not None
    forwards = ours.iter_events(**SESSION)
    backwards = ours.iter_events(**SESSION, newest_first=True)
    told = [[await anext(each)] for each in (forwards, backwards)]

    for _ in range(4):
        await ours.append_event(session, Event(author="x"))

    for each, so_far in zip((forwards, backwards), told, strict=True):
        so_far += [item async for item in each]
    assert [revision for revision, _ in told[0]] == list(range(1, 9))
    assert [revision for revision, _ in told[1]] == [4, 3, 2, 1]


@pytest.mark.parametrize("is_made_anew", [False, True])
async def test_a_session_that_is_deleted_meanwhile(
    ours: MongoSessionService, *, is_made_anew: bool
) -> None:
    """What is left of a page may come, but no event of a session made anew."""
    old = await fill(ours)
    reading = ours.iter_events(**SESSION)
    users = ours.iter_user_events(**ADA)
    told = [await anext(reading)]
    told_of_user = [await anext(users)]

    await ours.delete_session(**SESSION)
    if is_made_anew:
        await fill(ours)

    told += [await anext(reading) for _ in range(2)]
    with pytest.raises(SessionNotFoundError):
        await anext(reading)
    assert [event for _, event in told] == old[:3]
    told_of_user += [each async for each in users]
    assert [each.event for each in told_of_user] == old[:3]


async def test_a_session_that_is_not_there(ours: MongoSessionService) -> None:
    """What never was, or has expired, has no events to read, and that is an error."""
    clock = Clock.set()
    with pytest.raises(SessionNotFoundError):
        await revisions(ours)
    await fill(ours, 4, ttl=10)
    reading = ours.iter_events(**SESSION)
    assert (await anext(reading))[0] == 1
    clock.now += 10

    for each in (reading, ours.iter_events(**SESSION)):
        with pytest.raises(SessionNotFoundError):
            _ = [revision async for revision, _ in each]
    assert [each async for each in ours.iter_user_events(**ADA)] == []


async def test_all_events_of_a_user(ours: MongoSessionService) -> None:
    """They come session by session, each in order, and nobody else's among them."""
    state = {"large": "x" * 5000}  # which is kept beside the events
    logs = {
        name: await fill(ours, count, name, state=state)
        for name, count in COUNTS.items()
    }
    other = await ours.create_session(app_name="app", user_id="ada2")
    await ours.append_event(other, Event(author="x"))
    other = await ours.create_session(app_name="app2", user_id="ada")
    await ours.append_event(other, Event(author="x"))

    told = [each async for each in ours.iter_user_events(**ADA)]

    assert told == [
        (name, revision, event)
        for name in sorted(logs)
        for revision, event in enumerate(logs[name], 1)
    ]
    assert told[0].session_id == "a"
    assert [
        each async for each in ours.iter_user_events(**ADA | {"user_id": "x"})
    ] == []


COUNTS = {"b": 7, "a": 1, "empty": 0, "c": 3, "a/b": 2}


async def test_bad_spans_are_refused(ours: MongoSessionService) -> None:
    """What names no part of a log is refused at once."""
    for span, reason in [
        ({"after_revision": -1}, "after_revision must be a number of appends"),
        ({"before_revision": "3"}, "before_revision must be a number, or a place"),
        ({"limit": 1.5}, "limit must be a number"),
        ({"newest_first": "no"}, "newest_first must be True or False"),
        ({"session_id": ""}, "session_id must not be empty"),
    ]:
        with pytest.raises(InvalidInputError, match=reason):
            ours.iter_events(**{**SESSION, **span})
    with pytest.raises(InvalidInputError, match="user_id must be a string"):
        ours.iter_user_events(app_name="app", user_id=None)  # type: ignore[arg-type]
