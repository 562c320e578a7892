"""Reading what MongoDB holds, without the package that has written it."""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient
from pymongo.read_concern import ReadConcern

from chaos.history import Key, Shared, Stored, StoredLog


def read_stored(client: MongoClient[Any], database: str) -> Stored:
    """All sessions, events and shared state, and what should not be there."""
    at = client.get_database(database, read_concern=ReadConcern("majority"))
    stored = Stored(open_transactions=open_transactions(client))
    for document in at.sessions.find():
        key = Key(*document["_id"].values())
        if "revision" in document:
            log = StoredLog(key, document["state"], document["revision"], [])
            stored.sessions[key] = log
        else:
            stored.remnants.append("/".join(map(str, document["_id"].values())))
    for document in at.events.find().sort("_id", 1):
        if "event" not in document:
            continue  # a large initial state
        *key, revision = document["_id"].values()
        event = document["event"]
        delta = event.get("actions", {}).get("state_delta", {})
        log = stored.sessions.get(Key(*key))
        if log is None:
            stored.orphans.append(f"{key} {revision}")
        else:
            log.events.append((revision, event["id"], delta))
    for document in at.app_states.find():
        shared = Shared(document["state"], document["revision"])
        stored.shared[document["_id"],] = shared
    for document in at.user_states.find():
        shared = Shared(document["state"], document["revision"])
        stored.shared[tuple(document["_id"].values())] = shared
    return stored


def open_transactions(client: MongoClient[Any]) -> int:
    """How many transactions the server has open, whoever began them."""
    stages = [
        {"$currentOp": {"allUsers": True, "idleSessions": True}},
        {"$match": {"transaction.parameters": {"$exists": True}}},
    ]
    return len(list(client.admin.aggregate(stages)))
