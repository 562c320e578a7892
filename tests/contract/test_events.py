"""Events: what append stores, in which order, and what a read returns."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

APP, USER = "my_app", "user-1"


async def create(sessions: BaseSessionService) -> Session:
    return await sessions.create_session(app_name=APP, user_id=USER, session_id="s")


async def read(
    sessions: BaseSessionService, config: GetSessionConfig | None = None
) -> Session:
    found = await sessions.get_session(
        app_name=APP, user_id=USER, session_id="s", config=config
    )
    assert found is not None
    return found


def texts(session: Session) -> list[str]:
    return [event.author for event in session.events]


async def test_the_callers_session_is_the_stored_one(
    sessions: BaseSessionService,
) -> None:
    """After appends the caller's session equals the session read anew."""
    session = await create(sessions)
    for number in range(3):
        event = Event(
            author="agent",
            invocation_id=f"i{number}",
            content=types.Content(parts=[types.Part(text=f"answer {number}")]),
            actions=EventActions(state_delta={"n": number, "app:n": number}),
        )
        assert await sessions.append_event(session, event) is event

    assert await read(sessions) == session


async def test_contents_come_back_whole(sessions: BaseSessionService) -> None:
    """Calls, responses, images and metadata of an event survive storage."""
    session = await create(sessions)
    args = {"q": None, "big": 2**70, "$ref": "a", "a.b": [1, 1.0, True], "": "\ud800"}
    event = Event(
        author="agent",
        content=types.Content(
            role="model",
            parts=[
                types.Part.from_bytes(data=b"\x89PNG\x00\xff", mime_type="image/png"),
                types.Part.from_function_call(name="f", args=args),
                types.Part.from_function_response(name="f", response={"r": args}),
                types.Part(text="thought", thought=True, thought_signature=b"\x01"),
            ],
        ),
        custom_metadata={"k": {"%json": "not a wrapper"}},
        long_running_tool_ids={"b", "a"},
        finish_reason=types.FinishReason.MAX_TOKENS,
        timestamp=1700000000.123456,
    )
    await sessions.append_event(session, event)

    assert (await read(sessions)).events == [event]


async def test_partial_events_are_not_stored(sessions: BaseSessionService) -> None:
    """A partial event is handed back, and neither it nor its delta is kept."""
    session = await create(sessions)
    event = Event(author="x", partial=True, actions=EventActions(state_delta={"k": 1}))

    assert await sessions.append_event(session, event) is event

    assert session.events == []
    assert await read(sessions) == session


async def test_order_is_append_order(sessions: BaseSessionService) -> None:
    """Events come back in the order they were appended, whatever their clocks say."""
    session = await create(sessions)
    for author, timestamp in (("a", 300.0), ("b", 100.0), ("c", 200.0), ("d", 200.0)):
        await sessions.append_event(session, Event(author=author, timestamp=timestamp))

    assert texts(await read(sessions)) == ["a", "b", "c", "d"]


async def test_last_update_time_is_the_events_timestamp(
    sessions: BaseSessionService,
) -> None:
    """The session was updated when its latest event says, to the microsecond."""
    session = await create(sessions)
    await sessions.append_event(session, Event(author="x", timestamp=1.7e9 + 1e-6))

    assert session.last_update_time == 1.7e9 + 1e-6
    assert (await read(sessions)).last_update_time == 1.7e9 + 1e-6


async def test_reading_part_of_the_history(sessions: BaseSessionService) -> None:
    """The latest n, those at or after a time, both, or none: state is always whole."""
    session = await create(sessions)
    for number in range(1, 6):
        event = Event(
            author=str(number),
            timestamp=1.7e9 + number,
            actions=EventActions(state_delta={str(number): number}),
        )
        await sessions.append_event(session, event)

    for config, expected in (
        (None, "12345"),
        (GetSessionConfig(num_recent_events=3), "345"),
        (GetSessionConfig(num_recent_events=99), "12345"),
        (GetSessionConfig(num_recent_events=0), ""),
        (GetSessionConfig(after_timestamp=1.7e9 + 4), "45"),
        (GetSessionConfig(after_timestamp=1.7e9 + 4.5), "5"),
        (GetSessionConfig(after_timestamp=1.7e9 + 9), ""),
        (GetSessionConfig(num_recent_events=3, after_timestamp=1.7e9 + 4), "45"),
        (GetSessionConfig(num_recent_events=1, after_timestamp=1.7e9 + 4), "5"),
    ):
        found = await read(sessions, config)
        assert "".join(texts(found)) == expected
        assert found.state == session.state
        assert found.last_update_time == session.last_update_time


async def test_the_latest_are_chosen_before_their_time_is_asked(
    sessions: BaseSessionService,
) -> None:
    """Of the latest n events those since a time are read, even if clocks disagree."""
    session = await create(sessions)
    for author, timestamp in (("a", 10.0), ("b", 1.0), ("c", 11.0)):
        await sessions.append_event(session, Event(author=author, timestamp=timestamp))

    config = GetSessionConfig(num_recent_events=2, after_timestamp=5.0)
    assert texts(await read(sessions, config)) == ["c"]


async def test_appending_after_a_partial_read(sessions: BaseSessionService) -> None:
    """A session read without its history can be appended to."""
    await sessions.append_event(await create(sessions), Event(author="1"))
    partly = await read(sessions, GetSessionConfig(num_recent_events=0))
    await sessions.append_event(partly, Event(author="2"))

    assert texts(partly) == ["2"]
    assert texts(await read(sessions)) == ["1", "2"]


async def test_an_event_delivered_again_is_stored_once(
    sessions: BaseSessionService,
) -> None:
    """Appending an equal event again, at once or later, changes nothing."""
    session = await create(sessions)
    first = Event(author="1", actions=EventActions(state_delta={"k": "first"}))
    second = Event(author="2", actions=EventActions(state_delta={"k": "second"}))
    await sessions.append_event(session, first)
    await sessions.append_event(session, first)
    await sessions.append_event(session, second)
    await sessions.append_event(session, first.model_copy(deep=True))

    assert texts(await read(sessions)) == ["1", "2"]
    assert (await read(sessions)).state == {"k": "second"}
    assert session == await read(sessions)
    await sessions.append_event(session, Event(author="3"))
    assert texts(session) == ["1", "2", "3"]


async def test_appends_to_one_session_at_once_are_all_stored(
    sessions: BaseSessionService,
) -> None:
    """Tasks sharing a Session object may append at once: each append waits its turn."""
    session = await create(sessions)
    deltas = [{f"k{number}": number, "app:last": number} for number in range(20)]
    await asyncio.gather(
        *(
            sessions.append_event(
                session, Event(author="x", actions=EventActions(state_delta=delta))
            )
            for delta in deltas
        )
    )

    stored = await read(sessions)
    assert stored == session
    assert [event.actions.state_delta for event in stored.events] == deltas


async def test_appending_to_a_deleted_session_fails(
    sessions: BaseSessionService,
) -> None:
    """A session that is gone is not brought back by an append."""
    session = await create(sessions)
    await sessions.delete_session(app_name=APP, user_id=USER, session_id="s")

    with pytest.raises(SessionNotFoundError):
        await sessions.append_event(session, Event(author="x"))

    assert not await sessions.get_session(app_name=APP, user_id=USER, session_id="s")
