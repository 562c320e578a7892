"""Hooks that encrypt, and tell if they are not called as they should be."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from cryptography.fernet import Fernet
from google.adk.events import Event, EventActions
from google.genai import types
from pymongo import MongoClient

from mongo_session_service import Subject

CANARY = f"canary{uuid.uuid4().hex}"
"""Found nowhere but where a test has put it."""
_FERNET = Fernet(Fernet.generate_key())


def seal(value: Any, subject: Subject) -> dict[str, str]:
    """Never the same twice; whose it is goes with it."""
    text = json.dumps([value, *subject])
    return {"sealed": _FERNET.encrypt(text.encode()).decode()}


def unseal(sealed: Any, subject: Subject) -> Any:
    """Fails unless this was sealed once, for the same subject."""
    assert isinstance(sealed, dict), subject
    assert set(sealed) == {"sealed"}, subject
    value, *sealed_for = json.loads(_FERNET.decrypt(sealed["sealed"]))
    assert sealed_for == [*subject]
    return value


KEY = {"app_name": "app", "user_id": "user", "session_id": "s"}
STATE = {"own": [CANARY], "user:name": {"first": CANARY}, "app:motto": CANARY}
SEALED: dict[str, Any] = {"before_store": seal, "after_load": unseal}


def canary_event(**delta: Any) -> Event:
    """An event that says it wherever it can."""
    call = types.Part.from_function_call(name=CANARY, args={CANARY: [CANARY, 2**70]})
    image = types.Part.from_bytes(data=CANARY.encode(), mime_type="image/png")
    thought = types.Part(text=CANARY, thought_signature=CANARY.encode())
    return Event(
        author=CANARY,
        content=types.Content(role="model", parts=[call, image, thought]),
        actions=EventActions(state_delta={"own": [CANARY, None], **delta}),
        custom_metadata={CANARY: CANARY},
        error_message=CANARY,
        long_running_tool_ids={f"{CANARY}1", f"{CANARY}2"},
        output={"surrogate": f"\ud800{CANARY}", "nan": float("inf")},
    )


def clear_text(
    admin: MongoClient, databases: list[str], since: Timestamp
) -> Iterator[str]:
    """Where the canary is: in which collection, or in what of the oplog."""
    for database in databases:
        for name in admin[database].list_collection_names():
            for raw in _raw(admin, database, name).find():
                if CANARY.encode() in raw.raw:
                    yield f"{database}.{name}"
    for raw in _raw(admin, "local", "oplog.rs").find({"ts": {"$gte": since}}):
        if CANARY.encode() in raw.raw:
            yield f"oplog: {raw['op']} {raw['ns']}"


def _raw(admin: MongoClient, database: str, name: str) -> Any:
    options = admin.codec_options.with_options(document_class=RawBSONDocument)
    return admin[database].get_collection(name, options)


def cluster_time(admin: MongoClient) -> Timestamp:
    time: Timestamp = admin.admin.command("ping")["operationTime"]
    return time
