"""Stored form: whether a document is as this package writes it.

Another tool may have changed what readers take for the same: a number became text, or
bytes became their text. Fields of later releases are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.adk.events.event import Event

from mongo_session_service.codec.bson_values import decode_value
from mongo_session_service.codec.documents import (
    INITIAL,
    LOG_BEGINS,
    encode_event_fields,
)
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import Document, SessionKey

_SESSION: Final[Mapping[str, type]] = {
    "state": dict,
    "revision": int,
    "create_time": float,
    "update_time": float,
}
_OPTIONAL: Final[Mapping[str, type]] = {
    INITIAL: dict,
    "title": str,
    "labels": list,
    "ttl": float,
    "expire_time": float,
    LOG_BEGINS: int,
}
_SHARED: Final[Mapping[str, type]] = {"state": dict, "revision": int}


def odd_session(document: Document) -> str:
    """The field of a session's document that is not as it is stored; or nothing."""
    id_ = document["_id"]
    if list(id_) != list(SessionKey._fields) or not _are(id_.values(), str):
        return "_id"
    present = {name: kind for name, kind in _OPTIONAL.items() if name in document}
    if odd := _odd(document, {**_SESSION, **present}):
        return odd
    for label in document.get("labels", ()):
        if not isinstance(label, dict) or not {"name", "value"} <= label.keys():
            return "labels"
    details = Details.of(document).fields()
    return "labels" if details.get("labels") != document.get("labels") else ""


def odd_shared(document: Document) -> str:
    """The field of shared state's document that is not as it is stored; or nothing."""
    return _odd(document, _SHARED)


def is_odd_event(document: Document, key: SessionKey, revision: int) -> bool:
    """Whether an event's document is not that of a session's revision."""
    id_ = document["_id"]
    return id_ != key.event_id(revision) or not _are([id_["revision"]], int)


def is_beginning(document: Document, key: SessionKey) -> bool:
    """Whether a document is one that holds a session's initial state."""
    is_complete = {INITIAL, "create_time"} <= document.keys()
    return is_complete and not is_odd_event(document, key, 0)


def is_odd_content(fields: Document, event: Event) -> bool:
    """Whether an event's fields are not the ones that its reader is given."""
    try:
        read = encode_event_fields(event)
    except InvalidInputError:
        return True
    return any(_coerced(decode_value(fields), decode_value(read)))


def _odd(document: Document, kinds: Mapping[str, type]) -> str:
    wrong = (
        name for name, kind in kinds.items() if not _are([document.get(name)], kind)
    )
    return next(wrong, "")


def _are(values: Any, kind: type) -> bool:
    return all(isinstance(each, kind) and type(each) is not bool for each in values)


def _coerced(stored: Any, read: Any) -> Iterator[bool]:
    """Which parts that both have are of another type or value."""
    if isinstance(stored, dict) and isinstance(read, dict):
        for name in stored.keys() & read.keys():
            yield from _coerced(stored[name], read[name])
    elif isinstance(stored, list) and isinstance(read, list):
        if all(isinstance(each, str) for each in read):  # a set of names, perhaps
            stored, read = (sorted(each, key=repr) for each in (stored, read))
        yield len(stored) != len(read)
        for one, other in zip(stored, read, strict=False):
            yield from _coerced(one, other)
    else:
        yield repr(stored) != repr(read)
