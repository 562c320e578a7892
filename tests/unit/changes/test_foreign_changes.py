"""Change documents of what other tools have written, in whatever shape."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from mongo_session_service.changes import decoder
from mongo_session_service.changes.decoder import WatchedCollections
from mongo_session_service.changes.routing import Router
from mongo_session_service.codec.hooks import NO_HOOKS, Hooks
from mongo_session_service.errors import MongoSessionServiceError

NAMES = WatchedCollections("sessions", "events", "app_states", "user_states")
BANG = "hunter2"
HOOKED = Hooks(after_load=lambda value, _: value)

_scalars = st.sampled_from(
    [None, True, 0, 1, -1, Int64(2**40), 1.5, float("nan"), b"\xff", "", "a", BANG]
    + [ObjectId(), Timestamp(1, 1), Decimal128("1"), {"%json": 5}, {"%json": BANG}]
    + [{"%json": b"\xff"}, {"%json": "[" * 99_999}, {"%json": "9" * 9999}]
)
_names = st.sampled_from(
    ["state", "revision", "create_time", "event", "actions", "state_delta", "id"]
    + ["timestamp", "author", "wrapped", "x", "%json", "%uD800", "%", "app:x"]
)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=4)
    ),
    max_leaves=6,
)
_texts = st.just("a") | _scalars
_ids = _values | st.builds(
    lambda parts, more: {**parts, **more},
    st.fixed_dictionaries(
        {"app_name": _texts, "user_id": _texts}, optional={"session_id": _texts}
    ),
    st.sampled_from([{}, {"revision": 1}, {"removed": True}, {"updated": True}])
    | st.fixed_dictionaries({"revision": _scalars}),
)
_sessions = st.fixed_dictionaries(
    {"state": _values, "revision": st.just(0), "create_time": st.just(1.0)},
    optional={"title": _values, "labels": _values, "expire_time": _values},
)
_events = st.fixed_dictionaries(
    {
        "event": st.fixed_dictionaries(
            {},
            optional={
                "author": _scalars,
                "actions": _values
                | st.fixed_dictionaries({"state_delta": _values | _sessions}),
                "finish_reason": _values,
                "content": _values,
            },
        )
    },
    optional={"wrapped": st.just(value=True)},
)
_documents = _sessions | _events | st.dictionaries(_names, _values, max_size=4)
_paths = st.sampled_from(["state", "state.a", "state.a.b", "state.%", "x", "state."])
_told = st.one_of(
    st.fixed_dictionaries({"fullDocument": st.none() | _documents}),
    st.fixed_dictionaries(
        {
            "updateDescription": st.fixed_dictionaries(
                {
                    "updatedFields": st.dictionaries(_paths, _values, max_size=3),
                    "removedFields": st.lists(_paths, max_size=3),
                }
            )
        }
    ),
)


@st.composite
def _changes(draw: st.DrawFn) -> dict[str, Any]:
    id_ = draw(_ids)
    told = draw(_told)
    for document in told.values():
        if isinstance(document, dict) and "fullDocument" in told:
            document["_id"] = id_
    return {
        "_id": {"_data": "82"},
        "operationType": draw(st.sampled_from(["insert", "update", "replace"])),
        "ns": {"db": "d", "coll": draw(st.sampled_from(NAMES))},
        "documentKey": {"_id": id_},
        "clusterTime": Timestamp(7, 1),
        **told,
    }


@pytest.mark.parametrize("hooks", [NO_HOOKS, HOOKED], ids=["plain", "hooked"])
@given(change=_changes())
def test_no_change_document_is_too_strange(
    change: dict[str, Any], hooks: Hooks
) -> None:
    """It means something or nothing, and what fails later is this package's error."""
    item = decoder.decode_change(change, NAMES, hooks)

    if item is None:
        return
    router: Router[Any] = Router()
    router.route(replace(item, transaction=("a", 1)))
    if item.kind != "tombstone":
        assert item.size > 0
        with contextlib.suppress(MongoSessionServiceError):
            item.change()
        if item.kind == "appended":
            assert isinstance(item.shared_delta, dict)


def test_a_warning_of_a_foreign_change_holds_no_content(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The warning names the collection and the error's type, once."""
    change = {
        "operationType": "insert",
        "ns": {"db": "d", "coll": "app_states"},
        "documentKey": {"_id": "a"},
        "clusterTime": Timestamp(7, 1),
        "fullDocument": {"_id": "a", "state": {"x": {"%json": BANG}}},
    }
    caplog.set_level(logging.WARNING)

    assert decoder.decode_change(change, NAMES, NO_HOOKS) is None
    (record,) = caplog.records
    assert "'app_states'" in record.getMessage()
    assert "UnreadableError" in record.getMessage()
    assert BANG not in caplog.text


@pytest.mark.parametrize("event", [{"author": BANG}, {"actions": [BANG]}])
def test_a_partial_that_cannot_be_read_is_left_out(
    event: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Its error is of this package, and names its session."""
    place = {"app_name": "a", "user_id": "u", "session_id": "s", "epoch": 1, "n": 1}
    now = datetime(2026, 1, 1)  # noqa: DTZ001  as the driver has it
    turn = {"status": "running", "since": now, "host": "h", "time": now}

    record = decoder.decode_turn_progress(
        {"_id": place, **turn, "event": {**event, "content": BANG}}, NO_HOOKS
    )

    assert record is not None
    assert record.readable_change is None
    assert "session 's'" in caplog.text
    assert BANG not in caplog.text
