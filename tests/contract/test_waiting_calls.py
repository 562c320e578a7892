"""Waiting calls: sessions that wait for people, found and heard of."""

from __future__ import annotations

from google.adk.events import Event, EventActions
from support.fake_clock import Clock
from support.waiting import answer, ask, say

from mongo_session_service import MongoSessionService, WaitingCall

ADA = {"app_name": "app", "user_id": "ada"}
KEY = {**ADA, "session_id": "s"}


def rewind(turn: str) -> Event:
    actions = EventActions(rewind_before_invocation_id=turn)
    return Event(author="user", invocation_id="rewind", actions=actions)


async def start(service: MongoSessionService, *events: Event) -> None:
    """Create the session, and append events to it."""
    await service.create_session(**KEY)
    await append(service, *events)


async def append(service: MongoSessionService, *events: Event) -> None:
    session = await service.get_session(**KEY)
    assert session is not None
    for event in events:
        await service.append_event(session, event)


async def waiting(service: MongoSessionService) -> dict[str, tuple[WaitingCall, ...]]:
    """What waits in the sessions that the search finds, and in no others."""
    page = await service.find_sessions(**ADA, waiting=True)
    found = {each.id: each.waiting for each in page.sessions}
    everything = (await service.find_sessions(**ADA)).sessions
    assert {each.id: each.waiting for each in everything if each.waiting} == found
    return found


async def ids(service: MongoSessionService, session_id: str = "s") -> list[str]:
    found = await waiting(service)
    return [each.call_id for each in found.get(session_id, ())]


async def test_a_call_waits_until_it_is_answered(ours: MongoSessionService) -> None:
    """It is named with its author, time and revision, and found among others."""
    await ours.create_session(**ADA, session_id="other")
    await start(ours, say("Ship it", "i1"), asked := ask("c1"))
    at = {"since": asked.timestamp, "revision": 2}
    call = WaitingCall(call_id="c1", name="ship", author="clerk", **at)
    assert await waiting(ours) == {"s": (call,)}

    await append(ours, say("And the weather?", "i2"), answer("c1"))
    assert await waiting(ours) == {}


async def test_a_rewind_takes_back_questions_and_answers(
    ours: MongoSessionService,
) -> None:
    """What was asked after it waits no more; what was answered after it does again."""
    await start(ours, ask("c1", turn="i1"), answer("c1", turn="i2"))
    await append(ours, ask("c2", turn="i3"))
    assert await ids(ours) == ["c2"]

    await append(ours, rewind("i3"))
    assert await ids(ours) == []
    await append(ours, rewind("i2"), ask("c3", turn="i4"))
    assert await ids(ours) == ["c1", "c3"]


async def test_a_fork_waits_for_the_open_calls_of_its_log(
    ours: MongoSessionService,
) -> None:
    """A fork waits as the session did at its end."""
    await start(ours, ask("c1"), ask("c2", turn="i2"), answer("c1"))
    await ours.fork_session(**KEY, new_session_id="whole")
    await ours.fork_session(**KEY, new_session_id="early", at_revision=2)
    await ours.fork_session(**KEY, new_session_id="none", at_revision=0)

    assert await ids(ours, "whole") == ["c2"]
    assert await ids(ours, "early") == ["c1", "c2"]
    assert await ids(ours, "none") == []


async def test_a_trimmed_call_is_not_waited_for(
    ours: MongoSessionService,
) -> None:
    """A call that is too old to be answered goes with its event."""
    clock = Clock.set()
    await start(ours, ask("c1"), say("Hello?", "i2"), ask("c2", turn="i3"))
    clock.now += 40 * 86400
    assert await ours.trim_session(**KEY, keep_last=1) == 2
    assert await ids(ours) == ["c2"]


async def test_more_than_a_hundred_are_counted(ours: MongoSessionService) -> None:
    """A hundred are named, and the next ones when some of these are answered."""
    calls = [f"c{number:03}" for number in range(130)]
    await start(ours, ask(*calls[:90]), ask(*calls[90:]))
    (found,) = (await ours.find_sessions(**ADA, waiting=True)).sessions
    assert [each.call_id for each in found.waiting] == calls[:100]
    assert found.waiting_more == 30

    await append(ours, answer(*calls[:5], calls[120]))
    (found,) = (await ours.find_sessions(**ADA, waiting=True)).sessions
    assert [each.call_id for each in found.waiting] == calls[5:105]
    assert found.waiting_more == 24
    await append(ours, answer(*calls))
    assert await ids(ours) == []
