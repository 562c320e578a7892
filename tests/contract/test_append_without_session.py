"""Appending without a session in hand, as webhooks and jobs do."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from support.function_calls import called, responded
from support.one_session import IDS as KEY
from support.one_session import read

from mongo_session_service import InvalidInputError, MongoSessionService


async def test_an_event_is_appended_to_the_stored_log(
    ours: MongoSessionService,
) -> None:
    """It is stored last with its state, of all scopes, and ``temp:`` is left out."""
    session = await ours.create_session(**KEY, state={"k": 0, "kept": 1})
    await ours.append_event(session, Event(author="agent"))
    delta = {"k": 1, "user:u": 2**70, "app:a.$": 3, "temp:t": 4}
    event = Event(author="hook", actions=EventActions(state_delta=delta))

    assert await ours.append(**{**KEY, "session_id": " s "}, event=event) is event

    stored = await read(ours)
    assert [each.author for each in stored.events] == ["agent", "hook"]
    assert stored.events[-1] == event
    assert stored.state == {"k": 1, "kept": 1, "user:u": 2**70, "app:a.$": 3}
    assert stored.last_update_time == event.timestamp


async def test_a_webhook_that_is_sent_twice(ours: MongoSessionService) -> None:
    """The same event is stored once; another of its id is refused."""
    await ours.create_session(**KEY)
    event = Event(id="delivery", author="hook", timestamp=1.0)
    for later in (event, Event(author="agent")):
        await ours.append(**KEY, event=later)

    await ours.append(**KEY, event=event.model_copy(deep=True))

    assert [each.author for each in (await read(ours)).events] == ["hook", "agent"]
    with pytest.raises(AlreadyExistsError):
        await ours.append(**KEY, event=event.model_copy(update={"timestamp": 2.0}))


async def test_appends_without_a_session_are_refused(ours: MongoSessionService) -> None:
    """A missing session, a partial event and a rewind store nothing."""
    with pytest.raises(SessionNotFoundError):
        await ours.append(**KEY, event=Event(author="hook"))
    await ours.create_session(**KEY)
    rewind = EventActions(rewind_before_invocation_id="i")
    for refused, reason in [
        (Event(author="hook", partial=True), "partial event is not stored"),
        (Event(author="hook", actions=rewind), r"use Runner\.rewind_async"),
        ({}, "event must be an Event"),
    ]:
        with pytest.raises(InvalidInputError, match=reason):
            await ours.append(**KEY, event=refused)  # type: ignore[arg-type]
    assert (await read(ours)).events == []


async def test_no_event_comes_between_a_call_and_its_response(
    ours: MongoSessionService,
) -> None:
    """It is refused, and the response is not."""
    session = await ours.create_session(**KEY)
    await ours.append_event(session, called("f"))

    with pytest.raises(StaleSessionError, match="no response yet"):
        await ours.append(**KEY, event=Event(author="hook"))
    await ours.append(**KEY, event=responded("f"))
    await ours.append(**KEY, event=Event(author="hook"))

    authors = [each.author for each in (await read(ours)).events]
    assert authors == ["agent", "agent", "hook"]


async def test_some_calls_delay_no_event(ours: MongoSessionService) -> None:
    """A long-running call, the turn's own, or one of long ago, delays no event."""
    session = await ours.create_session(**KEY)
    long_ago = called("f")
    long_ago.timestamp -= 11
    own = Event(author="hook", invocation_id="theirs")
    for call, event in (
        (called("f", long_running=True), Event(author="hook")),
        (called("f"), own),
        (long_ago, Event(author="hook")),
    ):
        session = await read(ours)
        await ours.append_event(session, call)
        async with asyncio.timeout(20):
            await ours.append(**KEY, event=event)

    authors = [each.author for each in (await read(ours)).events]
    assert authors == ["agent", "hook"] * 3
