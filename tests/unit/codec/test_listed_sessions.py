"""Listed sessions are what ADK would validate, and none is part of another."""

from __future__ import annotations

import copy
from typing import Any, Final

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from google.adk.sessions import Session
from hypothesis import given, settings
from hypothesis import strategies as st
from support.strategies import identical, states

from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.adk_session import mark, to_session
from mongo_session_service.codec.hooks import NO_HOOKS, Hooks
from mongo_session_service.model.records import Marker, ScopedState, SessionKey
from mongo_session_service.storage import replies

NOW: Final = 5.0
USERS: Final = ("ada", "bob")


def unchanged(value: Any, _: object) -> Any:
    return value


HOOKS: Final = [NO_HOOKS, Hooks(unchanged, unchanged)]


def listed(own: list[ScopedState], hooks: Hooks) -> list[Session]:
    """What a list of two users makes of MongoDB's reply: each has the session twice."""
    found: list[dict[str, Any]] = []
    shared: list[dict[str, Any]] = []
    for user_id, state in zip(USERS, own, strict=True):
        for session_id in "ab":
            key = SessionKey("app", user_id, session_id)
            flat = state.merged()
            new = documents.encode_new_session(key, flat, NOW, hooks)
            found.append(documents.session_document(new))
        id_ = {"app_name": "app", "user_id": user_id}
        shared.append({"_id": id_, "state": new.delta.user})
    shared.append({"_id": "app", "state": new.delta.app})
    reply = RawBSONDocument(bson.encode({"cursor": {"firstBatch": found + shared}}))
    few = (replies.decode_small_reply(reply) or {})["firstBatch"]
    is_plain = bson_values.is_plain(reply.raw)
    count = len(found)
    decoded = documents.decode_sessions(
        few[:count], few[count:], NOW, hooks, is_plain=is_plain
    )
    return [*map(to_session, decoded)]


def changed(value: Any) -> None:
    """Change every list and dict in a value."""
    if isinstance(value, dict | list):
        for each in [*(value.values() if isinstance(value, dict) else value)]:
            changed(each)
        value.update(new=1) if isinstance(value, dict) else value.append(1)


@st.composite
def own_states(draw: st.DrawFn) -> list[ScopedState]:
    """The states of two users and their sessions, and of the app they share."""
    app = draw(states)
    # A session's own key has no prefix of a scope: else it is that scope's.
    return [
        ScopedState(app, draw(states), ScopedState.split(draw(states)).session)
        for _ in USERS
    ]


@pytest.mark.parametrize("hooks", HOOKS)
@settings(max_examples=20, deadline=None)
@given(own=own_states())
def test_a_list_is_as_if_validated(hooks: Hooks, own: list[ScopedState]) -> None:
    """Every field is what ADK's validation makes of the parts, in the same order."""
    expected = [
        Session.model_validate(
            {
                "id": session_id,
                "app_name": "app",
                "user_id": user_id,
                "state": state.merged(),
                "events": [],
                "last_update_time": NOW,
            }
        )
        for user_id, state in zip(USERS, own, strict=True)
        for session_id in "ab"
    ]
    for each in expected:
        mark(each, Marker(0, NOW))

    sessions = listed(own, hooks)

    assert [each.__getstate__() for each in sessions] == [
        each.__getstate__() for each in expected
    ]
    for session, valid in zip(sessions, expected, strict=True):
        assert identical(session.state, valid.state)
        assert [*session.state] == [*valid.state]


@pytest.mark.parametrize("hooks", HOOKS)
@settings(max_examples=20, deadline=None)
@given(own=own_states())
def test_a_change_of_one_is_seen_in_no_other(
    hooks: Hooks, own: list[ScopedState]
) -> None:
    """Whatever list or dict of a session is changed, the others stay as they were."""
    sessions = listed(own, hooks)
    for number, session in enumerate(sessions):
        others = [*sessions[:number], *sessions[number + 1 :]]
        before = copy.deepcopy([each.__getstate__() for each in others])

        changed(session.state)
        session.events.append(None)  # type: ignore[arg-type]
        session.model_fields_set.clear()

        assert [each.__getstate__() for each in others] == before
