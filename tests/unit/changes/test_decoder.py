"""What change stream documents mean."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from bson.timestamp import Timestamp

from mongo_session_service.changes import decoder
from mongo_session_service.changes.decoder import ChangeRecord, WatchedCollections
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.errors import HistoryLostError
from mongo_session_service.model.records import SessionKey

NAMES = WatchedCollections("p_sessions", "p_events", "p_app_states", "p_user_states")
KEY = SessionKey("a", "u", "s")
WALL_TIME = dt.datetime(2026, 1, 2, 3, 4, 5, 678000)  # noqa: DTZ001  as PyMongo has it
USER = {"app_name": "a", "user_id": "u"}


def change(kind: str, collection: str = "events", **fields: Any) -> dict[str, Any]:
    return {
        "_id": {"_data": "82"},
        "operationType": kind,
        "ns": {"db": "d", "coll": f"p_{collection}"},
        "clusterTime": Timestamp(7, 1),
        "wallTime": WALL_TIME,
        **fields,
    }


def update(collection: str, id_: Any, **description: Any) -> dict[str, Any]:
    nothing = {"updatedFields": {}, "removedFields": [], "truncatedArrays": []}
    return change(
        "update",
        collection,
        documentKey={"_id": id_},
        updateDescription={**nothing, **description},
    )


def record(kind: Any, owner: tuple[str, ...], content: dict[str, Any]) -> ChangeRecord:
    """A record of what ``change()`` makes."""
    return ChangeRecord(kind, owner, content, TIME, cluster_time=Timestamp(7, 1))


TIME = WALL_TIME.replace(tzinfo=dt.UTC).timestamp()
EVENT = {"_id": KEY.event_id(3), "event": {}}
REST = {"_id": KEY.id, "expire_time": 0.0}
SILENT = {"_id": {**KEY.id, "removed": True}}
DETAILS = {"title": "T", "ttl": 5.0, "expire_time": 7.0}
SESSION = {
    "_id": KEY.id,
    "state": {},
    "revision": 0,
    "create_time": 1.0,
    "update_time": 1.0,
}


@pytest.mark.parametrize(
    ("told", "meaning"),
    [
        (
            change("insert", documentKey={"_id": EVENT["_id"]}, fullDocument=EVENT),
            record("appended", KEY, {"document": EVENT}),
        ),
        (
            change(
                "insert", "sessions", documentKey={"_id": KEY.id}, fullDocument=SESSION
            ),
            record("created", KEY, {"document": SESSION}),
        ),
        (
            change("delete", "sessions", documentKey={"_id": KEY.id}),
            record("deleted", KEY, {}),
        ),
        (
            change(
                "insert",
                "sessions",
                documentKey={"_id": {**KEY.id, "updated": True}},
                fullDocument=DETAILS,
            ),
            record("updated", KEY, {"details": DETAILS, "waiting": {}}),
        ),
        (
            change(
                "delete",
                "sessions",
                documentKey={"_id": {**KEY.id, "updated": True}},
            ),
            None,
        ),
        (
            change(
                "insert", "sessions", documentKey={"_id": KEY.id}, fullDocument=REST
            ),
            None,
        ),
        (
            change("insert", "sessions", documentKey=SILENT, fullDocument=SILENT),
            record("tombstone", KEY, {}),
        ),
        (change("delete", "sessions", documentKey=SILENT), None),
        (
            update("app_states", "a", updatedFields={"state.x%2Ey": 1, "revision": 2}),
            record("state", ("a",), {"delta": {"app:x.y": 1}}),
        ),
        (
            update("user_states", USER, removedFields=["state.x"]),
            record("state", ("a", "u"), {"delta": {"user:x": None}}),
        ),
        (
            change(
                "insert",
                "user_states",
                documentKey={"_id": USER},
                fullDocument={"_id": USER, "state": {"x": {"%json": "1"}}},
            ),
            record("state", ("a", "u"), {"delta": {"user:x": 1}}),
        ),
        (
            update("app_states", "a", updatedFields={"state": {"x%2Ey": 1}}),
            record("state", ("a",), {"delta": {"app:x.y": 1}}),
        ),
        (update("app_states", "a", updatedFields={"revision": 2}), None),
        (change("drop", "unrelated"), None),
        (change("insert", documentKey={"_id": EVENT["_id"]}, fullDocument=None), None),
    ],
)
def test_changes_are_interpreted(told: dict[str, Any], meaning: Any) -> None:
    """Each document of a stream means one thing, or nothing."""
    assert decoder.decode_change(told, NAMES, NO_HOOKS) == meaning


@pytest.mark.parametrize(
    ("told", "what"),
    [
        (change("drop"), "The collection 'p_events' was dropped"),
        (change("rename"), "The collection 'p_events' was renamed"),
        (change("dropDatabase", ns={"db": "d"}), "The database was dropped"),
        (change("invalidate", ns={"db": "d"}), "The database was dropped"),
    ],
)
def test_a_drop_ends_the_history(told: dict[str, Any], what: str) -> None:
    """Its error names what was dropped."""
    with pytest.raises(HistoryLostError, match=what):
        decoder.decode_change(told, NAMES, NO_HOOKS)


@pytest.mark.parametrize(
    "paths",
    [
        {"updatedFields": {"state.x.y": 1}},
        {"updatedFields": {"state.x.0": 1}},
        {"removedFields": ["state.x.y"]},
        {"truncatedArrays": [{"field": "state.x", "newSize": 1}]},
    ],
)
def test_writes_in_place_have_their_document_read(paths: dict[str, Any]) -> None:
    """What another tool changed within a value is told by the whole document."""
    assert decoder.needs_document(update("app_states", "a", **paths), NAMES)


def test_slim_changes_have_their_document_read() -> None:
    """A change that came without its content needs its document, a delete does not."""
    assert decoder.needs_document(change("insert", documentKey={}), NAMES)
    assert decoder.needs_document(change("update", "app_states"), NAMES)
    assert not decoder.needs_document(change("delete", "sessions"), NAMES)
    assert not decoder.needs_document(change("drop"), NAMES)
    assert not decoder.needs_document(update("app_states", "a"), NAMES)


def test_a_record_has_its_transaction() -> None:
    """Changes that were committed together are known by it."""
    id_ = {"lsid": {"id": "session", "uid": b""}, "txnNumber": 3}
    deleted = change("delete", "sessions", documentKey={"_id": KEY.id}, **id_)

    found = decoder.decode_change(deleted, NAMES, NO_HOOKS)

    assert found is not None
    assert found.transaction == ("session", 3)


def test_older_servers_have_no_wall_time() -> None:
    """Before MongoDB 6.0 the deployment's clock tells the time, in whole seconds."""
    told = change("delete", "sessions")
    del told["wallTime"]

    assert decoder.committed_at(told) == 7.0
