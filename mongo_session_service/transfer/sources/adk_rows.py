"""ADK's SQL rows: decoded to sessions and events.

Drivers return JSON and time columns in different forms, so each form is accepted: text,
parsed, or a number of seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from google.adk.events.event import Event

from mongo_session_service.codec.events import build_event
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.records import SessionKey, session_key
from mongo_session_service.model.wording import indefinite
from mongo_session_service.transfer.source_items import (
    Problem,
    SessionHeader,
    SharedState,
    session_text,
)
from mongo_session_service.transfer.sources.base_source import MalformedError

Row = Mapping[str, Any]
Result = TypeVar("Result")


def key_of(row: Row, name: str = "id") -> SessionKey:
    """The session key in a row; rows of events name the id differently."""
    return SessionKey(row["app_name"], row["user_id"], row[name])


def _read(where: str, build: Callable[[], Result]) -> Result | Problem:
    """Return what a function builds, or the problem that it finds."""
    try:
        return build()
    except (MalformedError, InvalidInputError) as error:
        return Problem(where, str(error))


def shared_state_of(row: Row) -> SharedState | Problem:
    """The state in a row of app_states or user_states."""
    empty = SharedState(row["app_name"], row.get("user_id"), {})

    def shared_state() -> SharedState:
        return replace(empty, state=json_object(row["state"]))

    return _read(str(empty), shared_state)


def header_of(row: Row) -> SessionHeader | Problem:
    """The session in a row of sessions."""
    key = key_of(row)

    def header() -> SessionHeader:
        session_key(*key)
        return SessionHeader(
            key,
            json_object(row["state"]),
            update_time=seconds(row["update_time"]),
            create_time=seconds(row["create_time"]) if "create_time" in row else None,
        )

    return _read(session_text(key), header)


def event_of(row: Row) -> Event | Problem:
    """The event in a row of events."""

    def event() -> Event:
        fields = json_object(row["event_data"])
        fields |= {"id": row["id"], "invocation_id": row["invocation_id"]}
        if "timestamp" not in fields:
            fields["timestamp"] = seconds(row["timestamp"])
        return validated(fields)

    return _read(_place(row), event)


def whole_event_of(where: str, value: Any) -> Event | Problem:
    """The event that a document of a MongoDB service holds as JSON, text or parsed."""
    return _read(where, lambda: validated(json_object(value)))


def validated(fields: dict[str, Any]) -> Event:
    """The event that has these fields."""
    try:
        return build_event(fields)
    except (ValueError, TypeError, RecursionError):
        # The original quotes what it could not read.
        raise MalformedError("no event that this release of ADK can read") from None


def json_object(value: Any) -> dict[str, Any]:
    """A JSON object, parsed or as text."""
    parsed = _json(value)
    if not isinstance(parsed, dict):
        raise MalformedError(f"a JSON object was expected, not {_kind(parsed)}")
    return parsed


def seconds(value: Any) -> float:
    """A time column as seconds since 1970; a time without zone is UTC."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise MalformedError("one of its times is not finite")
        return float(value)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise MalformedError("one of its times cannot be read") from None
    if not isinstance(value, datetime):
        raise MalformedError(f"one of its times is {_kind(value)}")
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def _json(value: Any) -> Any:
    if not isinstance(value, str | bytes):
        return value
    try:
        return json.loads(value if isinstance(value, bytes) else value.encode())
    except UnicodeError:
        raise MalformedError("it holds text that is not UTF-8") from None
    except (ValueError, RecursionError):
        raise MalformedError("it holds broken JSON") from None


def _kind(value: Any) -> str:
    return "nothing" if value is None else indefinite(type(value).__name__)


def _place(row: Row) -> str:
    return f"event {row['id']!r} of {session_text(key_of(row, 'session_id'))}"
