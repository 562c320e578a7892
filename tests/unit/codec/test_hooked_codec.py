"""The codec with an application's hooks: exact, and consistent with itself."""

from __future__ import annotations

from typing import Any

import bson
from google.adk.events import Event, EventActions
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from support.encryption_hooks import seal, unseal
from support.strategies import identical, json_values, states

from mongo_session_service.codec.bson_values import decode_fields, decode_value
from mongo_session_service.codec.documents import (
    decode_event,
    decode_state,
    encode_append,
    encode_new_session,
    event_document,
    is_same_event,
)
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage.replies import CODEC_OPTIONS

KEY = SessionKey("app", "user", "session")
HOOKS = Hooks(seal, unseal)
KEEPING = Hooks(lambda value, _: value, lambda value, _: value)


def through_bson(document: dict[str, Any]) -> dict[str, Any]:
    return bson.decode(bson.encode(document), CODEC_OPTIONS)


own_states = states.map(
    lambda state: {f"own {key}": value for key, value in state.items()}
)


def test_a_hook_may_make_tuples() -> None:
    """What it stores in a tuple comes back to it as it would from a list."""
    sealing = Hooks(lambda value, _: (1, value), lambda stored, _: stored[1])
    state = {"odd": {"%bytes": ""}, "nan": float("nan"), "text": "\ud800"}

    fields = encode_new_session(KEY, state, 0.0, sealing).delta.session

    found = decode_state(through_bson(fields), Owner.of_session(KEY), sealing)
    assert identical(found, state)


fewer = settings(max_examples=50)  # there is much to seal


@fewer
@given(own_states, st.sampled_from([HOOKS, KEEPING]))
def test_state_survives_hooks(state: dict[str, Any], hooks: Hooks) -> None:
    """State comes back identical through hooks and BSON, whatever its values."""
    fields = encode_new_session(KEY, state, 0.0, hooks).delta.session

    found = decode_state(through_bson(fields), Owner.of_session(KEY), hooks)

    assert identical(found, state)


@fewer
@given(
    args=st.dictionaries(st.text(), json_values(), max_size=3),
    data=st.binary(max_size=20),
    delta=own_states,
    output=json_values(),
    hooks=st.sampled_from([HOOKS, KEEPING]),
)
def test_event_survives_hooks(
    args: dict[str, Any], data: bytes, delta: dict[str, Any], output: Any, hooks: Hooks
) -> None:
    """An event comes back equal through hooks and BSON, and is known as the same."""
    call = types.FunctionCall(name="f", args=args)
    parts = [
        types.Part(function_call=call),
        types.Part(inline_data=types.Blob(data=data, mime_type="x/y")),
    ]
    event = Event(
        author="agent",
        content=types.Content(parts=parts),
        actions=EventActions(state_delta=delta),
        custom_metadata={"meta": args},
        output=output,
    )
    append = encode_append(KEY, event, hooks)
    stored = through_bson(event_document(append, 1))

    found = decode_event(stored, hooks)

    assert identical(found.model_dump(), event.model_dump())
    assert is_same_event(encode_append(KEY, event, hooks), stored["event"], hooks)
    other = event.model_copy(update={"output": ["another"]})
    assert not is_same_event(encode_append(KEY, other, hooks), stored["event"], hooks)


@fewer
@given(own_states)
def test_a_log_can_be_folded_as_it_is_stored(delta: dict[str, Any]) -> None:
    """What an event sets is stored the same in it and in the state, if sealed once."""
    event = Event(author="agent", actions=EventActions(state_delta=delta))

    append = encode_append(KEY, event, HOOKS)

    logged = decode_value(append.event["actions"].get("state_delta", {}))
    assert logged == decode_fields(append.delta.session)
