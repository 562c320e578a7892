"""Looking events up: by id, by invocation, and without what rewinds have undone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.events._rewind_events import _apply_rewinds
from support.fake_clock import Clock

from mongo_session_service import InvalidInputError, MongoSessionService

ADA = {"app_name": "app", "user_id": "ada"}
SESSION = {**ADA, "session_id": "s"}


pytestmark = pytest.mark.limits(page_events=3)
"""Pages of three events, so that few make many pages."""


def event(number: int, invocation_id: str, rewind: str | None = None) -> Event:
    actions = EventActions(
        state_delta={"n": number}, rewind_before_invocation_id=rewind
    )
    return Event(
        id=f"e{number}", author="x", invocation_id=invocation_id, actions=actions
    )


async def store(service: MongoSessionService, events: list[Event]) -> list[Event]:
    """Create a session with these events; as it shows them."""
    session = await service.create_session(**SESSION)
    for each in events:
        await service.append_event(session, each)
    return session.events


TURNS = ["a", "b", "a", "", "\ud800", "b", "a.$", "b"]


async def test_an_event_by_its_id(ours: MongoSessionService) -> None:
    """An id finds its event, in its session only, and only while that is stored."""
    clock = Clock.set()
    events = await store(ours, [event(n, turn) for n, turn in enumerate(TURNS)])

    found = [await ours.get_event(**SESSION, event_id=each.id) for each in events]

    assert found == events
    for other in (
        {"event_id": "e99"},
        {"event_id": ""},
        {"event_id": "\ud800"},
        {"session_id": "t"},
        {"session_id": ""},
        {"user_id": "bob"},
    ):
        assert await ours.get_event(**{**SESSION, "event_id": "e1", **other}) is None
    with pytest.raises(InvalidInputError, match="event_id must be a string"):
        await ours.get_event(**SESSION, event_id=None)  # type: ignore[arg-type]
    await ours.update_session(**SESSION, ttl=10)
    clock.now += 11
    assert await ours.get_event(**SESSION, event_id="e1") is None


async def test_the_events_of_an_invocation(ours: MongoSessionService) -> None:
    """They come in order, in either direction, within the span and the limit."""
    events = await store(ours, [event(n, turn) for n, turn in enumerate(TURNS)])
    log = list(enumerate(events, 1))

    for turn in [*dict.fromkeys(TURNS), "other"]:
        whole = [each for each in log if each[1].invocation_id == turn]
        for span, wanted in (
            ({}, whole),
            ({"newest_first": True}, whole[::-1]),
            ({"limit": 2}, whole[:2]),
            ({"limit": 0}, []),
            ({"after_revision": 2}, [it for it in whole if it[0] > 2]),
            ({"before_revision": 6}, [it for it in whole if it[0] < 6]),
        ):
            reading = ours.iter_events(**SESSION, **span, invocation_id=turn)
            assert [each async for each in reading] == wanted


async def test_events_are_read_without_those_that_rewinds_undo(
    ours: MongoSessionService,
) -> None:
    """The rest is as ADK has it, in both directions, of any part, by turn."""
    chance = random.Random(7)  # noqa: S311  no secret
    turns = [f"turn {n} \ud800" for n in range(14)]
    events = [
        event(
            n, turns[n // 3], chance.choice([*turns[max(0, n // 3 - 2) :][:4], *PLAIN])
        )
        for n in range(40)
    ]
    events = await store(ours, events)
    live = {each.id for each in _apply_rewinds(events)}
    kept = [each for each in enumerate(events, 1) if each[1].id in live]
    assert 3 < len(kept) < 37

    async def told(**span: Any) -> list[tuple[int, Event]]:
        reading = ours.iter_events(**SESSION, rewound=False, **span)
        return [each async for each in reading]

    assert await told() == kept
    assert await told(newest_first=True) == kept[::-1]
    for revision in (5, kept[-1][0]):
        before = [each for each in kept if each[0] < revision]
        after = [each for each in kept if each[0] > revision]
        assert await told(before_revision=revision) == before
        assert await told(after_revision=revision, limit=2) == after[:2]
        newest = await told(before_revision=revision, newest_first=True, limit=3)
        assert newest == before[::-1][:3]
    of_turn = [each for each in kept if each[1].invocation_id == turns[0]]
    assert await told(invocation_id=turns[0]) == of_turn != []


PLAIN = [None] * 20
"""Against four rewinds."""


async def test_rewinds_that_come_meanwhile(ours: MongoSessionService) -> None:
    """A reader of what rewinds leave reads the log as it was when it began."""
    events = await store(ours, [event(n, f"t{n}") for n in range(6)])
    session = await ours.get_session(**SESSION)
    assert session is not None
    reading = ours.iter_events(**SESSION, rewound=False)
    first = await anext(reading)

    await ours.append_event(session, event(6, "t6", rewind="t1"))

    assert [first, *[each async for each in reading]] == list(enumerate(events, 1))
    reading = ours.iter_events(**SESSION, rewound=False)
    assert [revision async for revision, _ in reading] == [1]


async def test_no_session_to_look_in(ours: MongoSessionService) -> None:
    """A session that is not there, or was deleted meanwhile, is an error."""
    with pytest.raises(SessionNotFoundError):
        await anext(ours.iter_events(**SESSION, rewound=False))
    await store(ours, [event(n, "t") for n in range(6)])
    readings = [
        ours.iter_events(**SESSION, rewound=False),
        ours.iter_events(**SESSION, invocation_id="t"),
    ]
    for each in readings:
        await anext(each)
    await ours.delete_session(**SESSION)
    await store(ours, [event(n, "t") for n in range(6)])

    for each in readings:
        with pytest.raises(SessionNotFoundError):
            _ = [revision async for revision, _ in each]
    for wrong in ({"rewound": 0}, {"invocation_id": 1}):
        with pytest.raises(InvalidInputError):
            ours.iter_events(**SESSION, **wrong)  # type: ignore[arg-type]


async def test_a_fork_before_an_invocation(ours: MongoSessionService) -> None:
    """It ends before the invocation's first event; there has to be one."""
    events = await store(ours, [event(n, turn) for n, turn in enumerate(TURNS)])

    for turn in dict.fromkeys(TURNS):
        fork = await ours.fork_session(**SESSION, before_invocation_id=turn)
        first = TURNS.index(turn)
        assert fork.events == events[:first]
        assert fork.state == ({"n": first - 1} if first else {})
    with pytest.raises(InvalidInputError, match="no event of invocation 'other'"):
        await ours.fork_session(**SESSION, before_invocation_id="other")
    with pytest.raises(InvalidInputError, match="not both"):
        await ours.fork_session(**SESSION, before_invocation_id="a", at_revision=1)
    with pytest.raises(InvalidInputError, match="must be a string"):
        await ours.fork_session(**SESSION, before_invocation_id=1)  # type: ignore[arg-type]
