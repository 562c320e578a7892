"""JSON Lines: the file format of exported sessions, version 2.

The first line names the form; then each line is an object with one field::

    {"format": "mongo-session-service", "version": 2}
    {"app_state": {"app_name": ..., "state": {...}}}
    {"user_state": {"app_name": ..., "user_id": ..., "state": {...}}}
    {"session": {"app_name": ..., "user_id": ..., "session_id": ...,
                 "create_time": ..., "update_time": ..., "title": ...,
                 "labels": {...}, "ttl": ..., "expire_time": ..., "log_begins": ...,
                 "initial_state": {...}, "state": {...}}}
    {"event": {...}}
    {"end": {"sessions": 1, "events": 1}}

Events have ADK's field names and belong to the session above them, oldest first; keys
of state have no prefix and are sorted; times are seconds since 1970. A session has a
title, labels, a ttl and an expire_time only if they are set, and an initial_state if
it is known. If its first events were trimmed, log_begins is how many, and initial_state
is the state after these. Version 1 has no log_begins, and is read as well. What JSON
cannot hold is an object of one field: ``{"%bytes": "<base64>"}``, ``{"%float":
"nan"}``, ``{"%text": "<base64>"}`` for a string with a lone surrogate, and
``{"%object": [[key, value], ...]}`` for an object that has such a key or looks like one
of these four.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

from google.adk.events.event import Event

from mongo_session_service.codec.bson_values import decode_value, json_form
from mongo_session_service.codec.documents import (
    INITIAL,
    LOG_BEGINS,
    encode_event_fields,
)
from mongo_session_service.codec.extended_json import tagged, untagged
from mongo_session_service.errors import InvalidInputError, SourceError
from mongo_session_service.model import metadata
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.validation import check_id
from mongo_session_service.transfer.records import Item, SessionHeader, SharedState
from mongo_session_service.transfer.sources import limits
from mongo_session_service.transfer.sources.adk_rows import validated
from mongo_session_service.transfer.sources.base import UnreadableError

FORMAT: Final = "mongo-session-service"
VERSION: Final = 2
HEADER: Final = {"format": FORMAT, "version": VERSION}

_FIELDS: Final[Mapping[str, AbstractSet[str]]] = {
    "app_state": {"app_name", "state"},
    "user_state": {"app_name", "user_id", "state"},
    "session": {
        *SessionKey._fields,
        *("create_time", "update_time", INITIAL, LOG_BEGINS, "state"),
        *metadata.DETAILS,
    },
}


def to_line(item: SharedState | SessionHeader | Event) -> str:
    """An item as a line, without the line end.

    Raises:
        InvalidInputError: the event or state cannot be stored.
    """
    if isinstance(item, Event):
        return as_text({"event": decode_value(encode_event_fields(item))})
    state = _sorted(item.state)
    if isinstance(item, SessionHeader):
        times = {"create_time": item.create_time, "update_time": item.update_time}
        known = item.details.shown() if item.details else {}
        if item.log_begins:
            known[LOG_BEGINS] = item.log_begins
        if item.initial is not None:
            known[INITIAL] = _sorted(item.initial)
        return as_text({"session": {**item.key.id, **times, **known, "state": state}})
    if item.user_id is None:
        return as_text({"app_state": {"app_name": item.app_name, "state": state}})
    owner = {"app_name": item.app_name, "user_id": item.user_id}
    return as_text({"user_state": {**owner, "state": state}})


def _sorted(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: json_form(state[key]) for key in sorted(state)}


def end_line(sessions: int, events: int) -> str:
    """The last line, which a truncated file lacks."""
    return as_text({"end": {"sessions": sessions, "events": events}})


def as_text(value: Mapping[str, Any]) -> str:
    """A value as JSON on one line; what JSON cannot hold is tagged."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError):
        return _tagged_text(value)
    return _tagged_text(value) if '"%' in text else text


def _tagged_text(value: Any) -> str:
    return json.dumps(tagged(value), ensure_ascii=False, allow_nan=False)


def parse(line: bytes) -> tuple[str, Any]:
    """A line's only field, and its value without tags.

    Raises:
        UnreadableError: it is not a JSON object of one field, or takes too much memory.
    """
    limits.check_json(line)
    try:
        value = _DECODER.decode(line.decode())
        if b'"%' in line:
            value = untagged(value)
    except (ValueError, TypeError, RecursionError):
        raise UnreadableError("it is not valid JSON") from None
    if not isinstance(value, dict) or len(value) != 1:
        raise UnreadableError("it is not an object of one field")
    return next(iter(value.items()))


def _no_constant(name: str) -> Any:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
"""Created once: json.loads would create one for each line."""


def check_header(line: bytes) -> None:
    """Refuse a file of another format, by its first line.

    Raises:
        SourceError: it has another format, or a newer version.
    """
    try:
        limits.check_json(line)
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise SourceError(
            "Line 1: this is not a file of exported sessions; its first line would be"
            f" {json.dumps(HEADER)}."
        )
    if header.get("version") not in range(1, VERSION + 1):
        raise SourceError(
            f"Line 1: the file has format version {header.get('version')!r};"
            f" this release reads up to {VERSION}. Upgrade mongo-session-service."
        )


def to_item(kind: str, value: Any) -> Item:
    """The item that a line holds.

    Raises:
        UnreadableError: it is not a complete item.
    """
    if kind not in {*_FIELDS, "event"}:
        raise UnreadableError(f"it begins with {kind[:40]!r}, which is unknown")
    if not isinstance(value, dict):
        raise UnreadableError(f"its {kind} is not an object")
    if kind == "event":
        return validated(value)
    if unknown := sorted(value.keys() - _FIELDS[kind]):
        name = unknown[0][:40]
        raise UnreadableError(f"its {kind} has the unknown field {name!r}")
    state = value.get("state")
    if not isinstance(state, dict):
        raise UnreadableError(f"its {kind} has no state")
    try:
        return _item(kind, value, state)
    except InvalidInputError as error:
        raise UnreadableError(str(error).rstrip(".")) from None


def _item(
    kind: str, value: dict[str, Any], state: dict[str, Any]
) -> SharedState | SessionHeader:
    names = (name for name in SessionKey._fields if name in _FIELDS[kind])
    ids = [check_id(f"its {name}", value.get(name)) for name in names]
    if kind != "session":
        return SharedState(ids[0], ids[1] if kind == "user_state" else None, state)
    create_time, initial = value.get("create_time"), value.get(INITIAL)
    if initial is not None and not isinstance(initial, dict):
        raise UnreadableError("its session's initial state is not an object")
    begins = value.get(LOG_BEGINS, 0)
    if type(begins) is not int or not 0 <= begins < 2**63:
        raise UnreadableError("its session's log_begins is not a number of events")
    if begins and initial is None:
        raise UnreadableError("its session has log_begins, but no initial state")
    known = {
        name: check(value[name])
        for name, check in _DETAILS.items()
        if value.get(name) is not None
    }
    return SessionHeader(
        SessionKey(*ids),
        state,
        update_time=_time(value.get("update_time")),
        create_time=None if create_time is None else _time(create_time),
        details=metadata.Details(**known),
        initial=initial,
        log_begins=begins,
    )


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableError("one of its times is not a number")
    if not math.isfinite(value):
        raise UnreadableError("one of its times is not finite")
    return float(value)


_DETAILS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "title": metadata.check_stored_title,
    "labels": metadata.check_labels,
    "ttl": metadata.check_ttl,
    "expire_time": _time,
}
