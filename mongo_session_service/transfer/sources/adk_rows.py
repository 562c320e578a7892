"""ADK's SQL rows: decoded to sessions and events.

Drivers return JSON and time columns in different forms, so each form is accepted: text,
parsed, or a number of seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions

from mongo_session_service.codec.events import build_event
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.wording import indefinite
from mongo_session_service.transfer import records
from mongo_session_service.transfer.sources import adk_pickle

Row = Mapping[str, Any]

_JSON_COLUMNS: Final = (
    "content",
    "grounding_metadata",
    "custom_metadata",
    "usage_metadata",
    "citation_metadata",
    "input_transcription",
    "output_transcription",
)
_PLAIN_COLUMNS: Final = ("author", "branch", "error_code", "error_message")
_FLAGS: Final = ("partial", "turn_complete", "interrupted")


class UnreadableError(ValueError):
    """A row does not hold what its table should hold."""


def text_of(stored: bytes) -> str:
    """Text from SQLite, which stores any bytes; invalid UTF-8 fails later, by row."""
    return stored.decode("utf-8", "surrogateescape")


def key_of(row: Row, name: str = "id") -> SessionKey:
    """The session key in a row; rows of events name the id differently."""
    return SessionKey(row["app_name"], row["user_id"], row[name])


def shared_state_of(row: Row) -> records.SharedState | records.Problem:
    """The state in a row of app_states or user_states."""
    shared = records.SharedState(row["app_name"], row.get("user_id"), {})
    try:
        return records.SharedState(
            shared.app_name, shared.user_id, json_object(row["state"])
        )
    except UnreadableError as error:
        return records.Problem(str(shared), str(error))


def header_of(
    row: Row, zone: tzinfo | None = UTC
) -> records.SessionHeader | records.Problem:
    """The session in a row of sessions."""
    key = key_of(row)
    try:
        return records.SessionHeader(
            key,
            json_object(row["state"]),
            update_time=seconds(row["update_time"], zone),
            create_time=seconds(row["create_time"], zone)
            if "create_time" in row
            else None,
        )
    except UnreadableError as error:
        return records.Problem(records.named(key), str(error))


def event_of(row: Row) -> Event | records.Problem:
    """The event in a row of schema version 1, or of the SQLite service."""
    try:
        fields = json_object(row["event_data"])
        fields |= {"id": row["id"], "invocation_id": row["invocation_id"]}
        if "timestamp" not in fields:
            fields["timestamp"] = seconds(row["timestamp"])
        return validated(fields)
    except UnreadableError as error:
        return _problem(row, error)


def whole_event_of(where: str, value: Any) -> Event | records.Problem:
    """The event that a document of a MongoDB service holds as JSON, text or parsed."""
    try:
        return validated(json_object(value))
    except UnreadableError as error:
        return records.Problem(where, str(error))


def pickled_event_of(row: Row, zone: tzinfo | None) -> Event | records.Problem:
    """The event in a row of schema version 0, whose times are local to a zone."""
    try:
        fields = {
            **{name: row.get(name) for name in _PLAIN_COLUMNS},
            **{name: _flag(row.get(name)) for name in _FLAGS},
            **{name: _json(row.get(name)) for name in _JSON_COLUMNS},
            "id": row["id"],
            "invocation_id": row["invocation_id"],
            "timestamp": seconds(row["timestamp"], zone),
            "long_running_tool_ids": _json(row.get("long_running_tool_ids_json")),
            "actions": _actions(row["actions"]),
        }
        return validated(
            {key: each for key, each in fields.items() if each is not None}
        )
    except (UnreadableError, adk_pickle.UnreadableActionsError) as error:
        return _problem(row, error)


def validated(fields: dict[str, Any]) -> Event:
    """The event that has these fields.

    Raises:
        UnreadableError: this release of ADK cannot read it.
    """
    try:
        return build_event(fields)
    except (ValueError, TypeError, RecursionError):
        # The original quotes what it could not read.
        raise UnreadableError("no event that this release of ADK can read") from None


def json_object(value: Any) -> dict[str, Any]:
    """A JSON object, parsed or as text.

    Raises:
        UnreadableError: it is something else.
    """
    parsed = _json(value)
    if not isinstance(parsed, dict):
        raise UnreadableError(f"a JSON object was expected, not {_kind(parsed)}")
    return parsed


def seconds(value: Any, zone: tzinfo | None = UTC) -> float:
    """A time column as seconds since 1970.

    A time without zone is in ``zone``; None is this machine's local time.

    Raises:
        UnreadableError: it is not a time.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise UnreadableError("one of its times cannot be read") from None
    if not isinstance(value, datetime):
        raise UnreadableError(f"one of its times is {_kind(value)}")
    return (value if value.tzinfo else value.replace(tzinfo=zone)).timestamp()


def _json(value: Any) -> Any:
    if not isinstance(value, str | bytes):
        return value
    try:
        if isinstance(value, str):
            value.encode()
        return json.loads(value)
    except UnicodeError:
        raise UnreadableError("it holds text that is not UTF-8") from None
    except (ValueError, RecursionError):
        raise UnreadableError("it holds broken JSON") from None


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _actions(value: Any) -> EventActions:
    if value is None:
        return EventActions()
    return adk_pickle.load_actions(bytes(value))


def _kind(value: Any) -> str:
    return "nothing" if value is None else indefinite(type(value).__name__)


def _problem(row: Row, error: ValueError) -> records.Problem:
    where = records.named(key_of(row, "session_id"))
    return records.Problem(f"event {row['id']!r} of {where}", str(error))
