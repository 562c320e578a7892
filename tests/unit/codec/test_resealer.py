"""What re-sealing makes of single documents, and what it refuses."""

from __future__ import annotations

from typing import Any

import bson
import pytest
from google.adk.events import Event, EventActions
from hypothesis import given, settings
from support.encryption_hooks import Key, sealed_with
from support.strategies import identical, states

from mongo_session_service import ConfigurationError, StorageError
from mongo_session_service.codec.documents import (
    decode_event,
    decode_state,
    encode_append,
    encode_new_session,
    event_document,
    session_document,
)
from mongo_session_service.codec.hooks import NO_HOOKS, Hooks, Owner
from mongo_session_service.codec.resealer import Resealer
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage.replies import CODEC_OPTIONS

KEY = SessionKey("app", "user", "session")
OWNER = Owner.of_session(KEY)
OLD, NEW = Key(), Key()
BEFORE = Hooks(**sealed_with(OLD))
BETWEEN = Hooks(**sealed_with(NEW, OLD, reads_clear=True))
AFTER = Hooks(**sealed_with(NEW))
RESEALER = Resealer(BETWEEN, NEW.is_current)


def applied(document: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A document after an update, as it is read again."""
    updated = {key: it for key, it in {**document, **changes}.items() if it is not None}
    return bson.decode(bson.encode(updated), CODEC_OPTIONS)


def stored_session(state: dict[str, Any], hooks: Hooks) -> dict[str, Any]:
    return session_document(encode_new_session(KEY, state, 0.0, hooks))


def stored_event(event: Event, hooks: Hooks) -> dict[str, Any]:
    document = event_document(encode_append(KEY, event, hooks), 1)
    return applied(document, {})


@settings(max_examples=12)
@given(states)
def test_any_state_survives_a_new_key(state: dict[str, Any]) -> None:
    """Whatever it is, it is the same under the new key, and current from then on."""
    own = {f"own {key}": value for key, value in state.items()}
    for hooks in (BEFORE, NO_HOOKS):
        document = stored_session(own, hooks)

        renewed = applied(document, RESEALER.states(document, OWNER))

        for name in renewed.keys() & {"state", "initial_state"}:
            assert identical(decode_state(renewed[name], OWNER, AFTER), own)
        assert RESEALER.states(renewed, OWNER) == {}


@settings(max_examples=12)
@given(states)
def test_any_event_survives_a_new_key(state: dict[str, Any]) -> None:
    """So does an event with what it sets, sealed before or in clear."""
    event = Event(author="x", output=state, actions=EventActions(state_delta=state))
    for hooks in (BEFORE, NO_HOOKS):
        document = stored_event(event, hooks)

        renewed = applied(document, RESEALER.event(document))

        expected = decode_event(stored_event(event, NO_HOOKS), NO_HOOKS)
        assert repr(decode_event(renewed, AFTER)) == repr(expected)
        assert RESEALER.event(renewed) == {}


def test_what_is_current_stays_as_it_is() -> None:
    """Only the values are sealed again of which it is not so; None never is."""
    session = stored_session({"old": 1, "none": None}, BEFORE)
    new = stored_session({"new": 2}, AFTER)["state"]
    session["state"] = session["state"] | new

    changes = RESEALER.states(session, OWNER)

    assert changes["state"]["new"] == new["new"]
    assert changes["state"]["none"] is None
    assert changes["state"]["old"]["key"] == NEW.name
    assert decode_state(changes["state"], OWNER, AFTER) == {
        "old": 1,
        "none": None,
        "new": 2,
    }


def test_old_state_in_a_current_event_is_found() -> None:
    """An event's content may be current, and what it has set may not."""
    event = Event(author="x", actions=EventActions(state_delta={"a": 1}))
    old, new = (stored_event(event, hooks) for hooks in (BEFORE, AFTER))
    mixed = {**new["event"], "actions": old["event"]["actions"]}

    changes = RESEALER.event({**new, "event": mixed})

    assert {**changes["event"], "actions": 0} == {**new["event"], "actions": 0}
    assert decode_event({**new, **changes}, AFTER) == event


@pytest.mark.parametrize(
    ("hooks", "error", "message"),
    [
        (BEFORE, ConfigurationError, "is_current does not accept"),
        (AFTER, StorageError, "after_load failed with AssertionError"),
        (
            Hooks(NEW.seal, lambda value, _: value),
            ConfigurationError,
            "after_load does not return what before_store was given",
        ),
        (
            Hooks(lambda _value, _: {"key": NEW.name}, lambda _value, _: None),
            ConfigurationError,
            "is_current does not accept",
        ),
    ],
    ids=["old key", "new key alone", "not inverse", "nothing left"],
)
def test_wrong_hooks_are_refused(
    hooks: Hooks, error: type[Exception], message: str
) -> None:
    """What would make something unreadable is found before it is written."""
    resealer = Resealer(hooks, NEW.is_current)
    document = stored_session({"secret": "canary"}, BEFORE)

    with pytest.raises(error, match=message) as caught:
        resealer.states(document, OWNER)

    assert "canary" not in str(caught.value)


def test_a_failing_judge_is_reported() -> None:
    """Its error may quote what is stored, and is not shown."""

    def fail(stored: Any, _: Any) -> bool:
        raise ValueError(stored)

    document = stored_session({"secret": "canary"}, NO_HOOKS)

    with pytest.raises(ValueError, match="is_current failed with ValueError") as caught:
        Resealer(BETWEEN, fail).states(document, OWNER)

    assert "canary" not in str(caught.value)
