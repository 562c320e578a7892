from __future__ import annotations

from typing import Any

import bson
import pytest
from google.adk.events import Event, EventActions
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st
from support.encryption_hooks import seal, unseal
from support.event_fields import ACTIONS, EVENT
from support.strategies import identical, json_values, states

from mongo_session_service import DocumentTooLargeError, InvalidInputError
from mongo_session_service.codec.bson_values import (
    CODEC_OPTIONS,
    decode_fields,
    encode_fields,
    encode_value,
)
from mongo_session_service.codec.document_size import MAX_DOCUMENT_BYTES
from mongo_session_service.codec.documents import (
    decode_events,
    decode_state,
    encode_append,
    encode_new_session,
    event_document,
    is_same_event,
)
from mongo_session_service.codec.events import (
    _dump,
    _dump_ordinary,
    build_event,
    drop_defaults,
    dump_event,
)
from mongo_session_service.codec.hooks import NO_HOOKS, Hooks, Owner
from mongo_session_service.model.records import SessionKey

KEY = SessionKey("app", "user", "session")


def through_bson(document: dict[str, Any]) -> dict[str, Any]:
    return bson.decode(bson.encode(document), CODEC_OPTIONS)


def stored(event: Event) -> dict[str, Any]:
    """What is read of an event that was written."""
    return through_bson(event_document(encode_append(KEY, event, NO_HOOKS), 1))


def keep(value: Any, _: object) -> Any:
    return value


@given(states)
def test_state_survives_bson(state: dict[str, Any]) -> None:
    """A scope's state comes back identical, whatever its keys and values."""
    assert identical(decode_fields(through_bson(encode_fields(state))), state)


@settings(max_examples=50)  # there is much to seal
@given(
    args=st.dictionaries(st.text(), json_values(), max_size=3),
    data=st.binary(max_size=20),
    delta=states,
    output=json_values(),
    hooks=st.sampled_from([NO_HOOKS, Hooks(seal, unseal), Hooks(keep, keep)]),
)
def test_event_survives_bson(
    args: dict[str, Any], data: bytes, delta: dict[str, Any], output: Any, hooks: Hooks
) -> None:
    """An event comes back equal, through hooks and BSON, and is known as the same."""
    event = Event(
        author="agent",
        content=types.Content(
            parts=[
                types.Part(function_call=types.FunctionCall(name="f", args=args)),
                types.Part(inline_data=types.Blob(data=data, mime_type="x/y")),
            ]
        ),
        actions=EventActions(
            state_delta={
                key: value for key, value in delta.items() if key[:5] != "temp:"
            }
        ),
        custom_metadata={"meta": args},
        output=output,
    )

    append = encode_append(KEY, event, hooks)
    document = through_bson(event_document(append, 1))
    (found,) = decode_events([document], hooks)

    assert found == event
    assert is_same_event(append, document["event"], hooks)
    assert identical(found.model_dump(), event.model_dump())


@pytest.mark.parametrize(
    "fields",
    [
        {"author": "a", "id": "1", "timestamp": 1.0, "actions": {"route": ["x"]}},
        {"author": "a", "id": "1", "timestamp": 1.0, "nodeInfo": {"path": "w/a"}},
        {"author": "a", "id": "1", "timestamp": 1.0, "message": "hi", "newer": 1},
        {"author": "a", "id": "1", "timestamp": 1.0, "state": {"k": 1}},
        stored(Event(**EVENT, actions=EventActions(**ACTIONS)))["event"],
    ],
)
def test_events_are_built_as_adk_builds_them(fields: dict[str, Any]) -> None:
    """What is built of fields is ADK's own event, whatever fields these are."""
    built, validated = build_event(fields), Event.model_validate(fields)

    assert type(built) is Event
    assert built == validated
    assert built.__getstate__() == validated.__getstate__()
    assert type(built.model_copy(deep=True)) is Event


def test_the_event_is_not_changed_by_encoding() -> None:
    """temp: keys stay in the caller's event until it is stored."""
    event = Event(author="a", actions=EventActions(state_delta={"temp:x": 1, "y": 2}))
    before = event.model_copy(deep=True)

    append = encode_append(KEY, event, NO_HOOKS)

    assert event == before
    assert event_document(append, 1)["event"]["actions"]["state_delta"] == {"y": 2}
    assert append.delta.session == {"y": 2}


def test_an_event_is_recognised_by_its_content() -> None:
    """The same event read back is the same; one changed value makes it another."""
    event = Event(author="a", output=[1, {"k": 2**70}])
    other = event.model_copy(update={"output": [1.0, {"k": 2**70}]})
    found = stored(event)["event"]

    assert is_same_event(encode_append(KEY, event, NO_HOOKS), found, NO_HOOKS)
    assert not is_same_event(encode_append(KEY, other, NO_HOOKS), found, NO_HOOKS)


def test_too_large_events_are_refused_by_name() -> None:
    """An event over the limit is refused, naming it and its largest state key."""
    delta = {"small": 1, "blob": "x" * MAX_DOCUMENT_BYTES}
    event = Event(id="e1", author="a", actions=EventActions(state_delta=delta))

    with pytest.raises(DocumentTooLargeError, match="'e1'.*'blob'") as caught:
        encode_append(KEY, event, NO_HOOKS)

    assert "xxx" not in str(caught.value)


def test_too_large_initial_state_is_refused_by_key() -> None:
    """Initial state over the limit is refused, naming its largest key."""
    state = {"app:blob": "x" * MAX_DOCUMENT_BYTES, "small": 1}

    with pytest.raises(DocumentTooLargeError, match="'blob'"):
        encode_new_session(KEY, state, 0.0, NO_HOOKS)


@pytest.mark.parametrize("state", [[], "x", 1, {1: 2}, {None: 1}])
def test_state_must_be_a_dict_with_string_keys(state: Any) -> None:
    """Anything else is refused before it is stored."""
    with pytest.raises(InvalidInputError):
        encode_new_session(KEY, state, 0.0, NO_HOOKS)


def test_an_unusable_value_is_named_by_its_key_and_not_shown() -> None:
    """The error says which key is at fault, and does not quote the value."""
    with pytest.raises(InvalidInputError, match="'app:image'") as caught:
        encode_new_session(KEY, {"app:image": b"hunter2\xff"}, 0.0, NO_HOOKS)

    assert "hunter2" not in str(caught.value)


def test_a_hook_may_make_tuples() -> None:
    """What it stores in a tuple comes back to it as it would from a list."""
    sealing = Hooks(lambda value, _: (1, value), lambda stored, _: stored[1])
    state = {"odd": {"%bytes": ""}, "nan": float("nan"), "text": "\ud800"}

    fields = encode_new_session(KEY, state, 0.0, sealing).delta.session

    found = decode_state(through_bson(fields), Owner.of_session(KEY), sealing)
    assert identical(found, state)


@pytest.mark.parametrize("name", [*EVENT])
def test_a_field_is_dumped_as_its_model_does_it(name: str) -> None:
    """The short way of ordinary events stores what the long way does, byte for byte."""
    event = Event(**{"author": "a", name: EVENT[name]})

    ways = [dump_event(event)[0], _dump(event)[0]]

    for document in ways:
        document["actions"]["state_delta"] = {}
        drop_defaults(document)
    short, long = (bson.encode(encode_value(each)) for each in ways)
    assert short == long


OF_RUNNER = {name: EVENT[name] for name in ("node_info", "invocation_id", "content")}


@pytest.mark.parametrize(
    "names",
    [
        ("usage_metadata", "finish_reason", "model_version", "avg_logprobs"),
        ("grounding_metadata", "citation_metadata", "cache_metadata"),
        ("turn_complete", "branch", "error_code", "long_running_tool_ids"),
    ],
)
def test_events_of_a_model_take_the_short_way(names: tuple[str, ...]) -> None:
    """What ADK's Runner yields is dumped without ADK's functions in Python."""
    event = Event(author="a", **OF_RUNNER, **{name: EVENT[name] for name in names})

    assert _dump_ordinary(event) is not None
    assert _dump_ordinary(event.model_copy(update={"author": None})) is None
