"""ADK's SQL rows: decoded to sessions and events.

Drivers return JSON and time columns in different forms, so each form is accepted: text,
parsed, or a number of seconds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, TypeVar

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions

from mongo_session_service.codec.events import build_event
from mongo_session_service.errors import SourceError
from mongo_session_service.model.records import SessionKey
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

_JSON_COLUMNS: Final = (
    "content",
    "grounding_metadata",
    "custom_metadata",
    "usage_metadata",
    "citation_metadata",
    "input_transcription",
    "output_transcription",
)
_PLAIN_COLUMNS: Final = (
    *("id", "invocation_id", "author", "branch", "error_code", "error_message"),
    *("partial", "turn_complete", "interrupted"),
)


def key_of(row: Row, name: str = "id") -> SessionKey:
    """The session key in a row; rows of events name the id differently."""
    return SessionKey(row["app_name"], row["user_id"], row[name])


def _read(where: str, build: Callable[[], Result]) -> Result | Problem:
    """Return what a function builds, or the problem that it finds."""
    try:
        return build()
    except MalformedError as error:
        return Problem(where, str(error))


def _check_names(*names: object) -> None:
    """Refuse a row without an owner, which SQLite may have."""
    for name in names:
        if not isinstance(name, str):
            raise MalformedError("its row lacks an app, user or id")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise MalformedError("its app, user or id is not UTF-8") from None


def shared_state_of(row: Row) -> SharedState | Problem:
    """The state in a row of app_states or user_states."""
    empty = SharedState(row["app_name"], row.get("user_id"), {})

    def shared_state() -> SharedState:
        _check_names(row["app_name"], row.get("user_id", ""))
        return replace(empty, state=json_object(row["state"]))

    return _read(str(empty), shared_state)


def header_of(row: Row, zone: tzinfo | None = UTC) -> SessionHeader | Problem:
    """The session in a row of sessions."""
    key = key_of(row)

    def header() -> SessionHeader:
        _check_names(*key)
        return SessionHeader(
            key,
            json_object(row["state"]),
            update_time=seconds(row["update_time"], zone),
            create_time=seconds(row["create_time"], zone)
            if "create_time" in row
            else None,
        )

    return _read(session_text(key), header)


def event_of(row: Row) -> Event | Problem:
    """The event in a row of schema version 1, or of the SQLite service."""

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


def pickled_event_of(row: Row, zone: tzinfo | None) -> Event | Problem:
    """The event in a row of schema version 0, whose times are local to a zone."""

    def event() -> Event:
        tools, pickled = row.get("long_running_tool_ids_json"), row["actions"]
        fields = {
            **{name: row.get(name) for name in _PLAIN_COLUMNS},
            **{name: _json(row.get(name)) for name in _JSON_COLUMNS},
            "timestamp": seconds(row["timestamp"], zone),
            "long_running_tool_ids": _json(tools),
            "actions": None if pickled is None else load_actions(bytes(pickled)),
        }
        return validated(
            {key: each for key, each in fields.items() if each is not None}
        )

    return _read(_place(row), event)


def check_pickle_loader() -> None:
    """Refuse pickled actions if the installed ADK has no restricted loader for them."""
    try:
        from google.adk.sessions import _restricted_pickle  # noqa: F401, PLC0415
    except ImportError:
        raise SourceError(
            "This database holds pickles of google-adk 1.x, which the installed ADK"
            " cannot load safely. Upgrade google-adk, or convert the database with its"
            " command `adk migrate session`, and import the result."
        ) from None


def load_actions(pickled: bytes) -> EventActions:
    """Load actions that google-adk 1.x pickled, with ADK's own restricted loader."""
    from google.adk.sessions import _restricted_pickle  # noqa: PLC0415  not in all

    try:
        loaded = _restricted_pickle.loads(pickled)
        fields = loaded if isinstance(loaded, dict) else vars(loaded)
        known = EventActions.model_fields.keys()
        # An action that this ADK does not know is an error, unless it was not used.
        return EventActions.model_validate(
            {name: value for name, value in fields.items() if value or name in known}
        )
    except Exception as error:  # noqa: BLE001  a broken pickle may raise anything
        # Only the error's type: its text may quote the content.
        reason = f"ADK cannot load its pickled actions ({type(error).__name__})"
        raise MalformedError(reason) from None


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


def seconds(value: Any, zone: tzinfo | None = UTC) -> float:
    """A time column as seconds since 1970.

    A time without zone is in ``zone``; None is this machine's local time.
    """
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
    return (value if value.tzinfo else value.replace(tzinfo=zone)).timestamp()


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
