"""Anything at all, stored in every scope and event, as ADK's own service keeps it."""

from __future__ import annotations

import itertools
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import BaseSessionService, InMemorySessionService, Session
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import identical, json_values, nested, states

from mongo_session_service import MongoSessionService

APP = "app"
SCOPES = ("", "user:", "app:")
numbers = itertools.count()
on_a_server = settings(max_examples=60)

prefixed_states = st.dictionaries(
    st.builds(str.__add__, st.sampled_from(["", "app:", "user:", "temp:"]), st.text()),
    json_values(),
    max_size=5,
)


async def play(
    service: BaseSessionService,
    user: str,
    initial: dict[str, Any],
    deltas: list[dict[str, Any]],
    args: dict[str, Any],
    data: bytes,
) -> tuple[Session, Session]:
    """The same conversation, as the caller ends up with it and as it is stored."""
    session = await service.create_session(
        app_name=APP + user, user_id=user, session_id="s", state=initial
    )
    for number, delta in enumerate(deltas):
        event = Event(
            id=f"e{number}",
            author="agent",
            timestamp=1.7e9 + number,
            content=types.Content(
                parts=[
                    types.Part(function_call=types.FunctionCall(name="f", args=args)),
                    types.Part(inline_data=types.Blob(data=data, mime_type="a/b")),
                ]
            ),
            actions=EventActions(state_delta=dict(delta)),
            custom_metadata=args,
        )
        await service.append_event(session, event)
    stored = await service.get_session(
        app_name=APP + user, user_id=user, session_id="s"
    )
    assert stored is not None
    return session, stored


@on_a_server
@given(
    initial=prefixed_states,
    deltas=st.lists(st.one_of(prefixed_states, states), max_size=3),
    args=states,
    data=st.binary(max_size=50),
)
async def test_any_conversation_is_stored_as_in_memory(
    service: MongoSessionService,
    initial: dict[str, Any],
    deltas: list[dict[str, Any]],
    args: dict[str, Any],
    data: bytes,
) -> None:
    """State and events equal what ADK's in-memory service keeps, type for type."""
    user = f"u{next(numbers)}"
    expected, expected_stored = await play(
        InMemorySessionService(), user, initial, deltas, args, data
    )

    session, stored = await play(service, user, initial, deltas, args, data)

    for ours, theirs in ((session, expected), (stored, expected_stored)):
        assert identical(ours.state, theirs.state)
        assert [event.model_dump() for event in ours.events] == [
            event.model_dump() for event in theirs.events
        ]
        for our_event, their_event in zip(ours.events, theirs.events, strict=True):
            assert our_event == their_event
            assert identical(our_event.model_dump(), their_event.model_dump())


async def test_large_and_deep_values_are_stored_as_in_memory(
    service: MongoSessionService,
) -> None:
    """Megabytes of text, thousands of keys and 200 levels come back as they were."""
    delta = {
        "text": "ä" * 1_500_000,
        "many": {f"key {number}": number for number in range(5_000)},
        "deep": nested(200, 1.0),
        "user:deep": nested(200, 2**70, in_lists=True),
        "app:many": {"": [None] * 5_000},
        **{f"{scope}k{n}.{n}": n for scope in SCOPES for n in range(5_000)},
    }
    args = {"deep": nested(200, "x"), "text": "x" * 3_000_000}
    expected = await play(
        InMemorySessionService(), "u", delta, [delta], args, b"\0" * 9
    )

    found = await play(service, "u", delta, [delta], args, b"\0" * 9)

    for ours, theirs in zip(found, expected, strict=True):
        assert identical(ours.state, theirs.state)
        assert ours.events == theirs.events
