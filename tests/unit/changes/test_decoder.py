"""What change stream documents mean."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from bson.timestamp import Timestamp

from mongo_session_service.changes import decoder
from mongo_session_service.changes.decoder import WatchedCollections
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.errors import HistoryLostError
from mongo_session_service.model.records import SessionKey

NAMES = WatchedCollections("p_sessions", "p_events", "p_app_states", "p_user_states")
KEY = SessionKey("a", "u", "s")
WALL_TIME = dt.datetime(2026, 1, 2, 3, 4, 5, 678000)  # noqa: DTZ001  as PyMongo has it


def change(kind: str, collection: str = "events", **fields: Any) -> dict[str, Any]:
    return {
        "_id": {"_data": "82"},
        "operationType": kind,
        "ns": {"db": "d", "coll": f"p_{collection}"},
        "clusterTime": Timestamp(7, 1),
        "wallTime": WALL_TIME,
        **fields,
    }


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


def test_older_servers_have_no_wall_time() -> None:
    """Before MongoDB 6.0 the deployment's clock is used, in whole seconds."""
    told = change("delete", "sessions")
    del told["wallTime"]

    assert decoder.committed_at(told) == 7.0
