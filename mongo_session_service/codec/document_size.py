"""Document size limits, and the errors that name what is too large."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import bson

from mongo_session_service.codec.bson_values import unescape_key
from mongo_session_service.errors import DocumentTooLargeError, quoted
from mongo_session_service.model.records import Append, NewSession

MAX_DOCUMENT_BYTES: Final = 15_500_000
"""Below the server's 16 MiB, which leaves room for ids and a change's envelope."""

_MOST_STORED: Final = 16 * 2**20

_MAX_COMMAND_ID_BYTES: Final = 4_000_000
"""Bytes of ``_id``s in one command, which may name each of them twice."""

_REMEDY: Final = (
    "Nothing was changed. Keep large content in an ADK artifact and only its name in"
    " state."
)


Item = TypeVar("Item")


def cut_by_size(
    items: Iterable[Item], most: int, size_of: Callable[[Item], int] = lambda _: 1
) -> Iterator[list[Item]]:
    """Chunk items: ``most`` in a list, or as many as have that size together."""
    part: list[Item] = []
    total = 0
    for each in items:
        size = size_of(each)
        if part and total + size > most:
            yield part
            part, total = [], 0
        part.append(each)
        total += size
    if part:
        yield part


def cut_by_id_size(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Cut items into lists whose documents' ``id``s fit into one command."""
    return cut_by_size(items, _MAX_COMMAND_ID_BYTES, _id_size)


def _id_size(item: Any) -> int:
    return len(bson.encode({"": item.id}))


def check_event_size(event_id: str, delta: Mapping[str, Any], size: int) -> None:
    if size > MAX_DOCUMENT_BYTES:
        raise _too_large(f"Event {quoted(event_id)} ({_largest_key(delta)})", size)


def check_initial_state(fields: Mapping[str, Any]) -> int:
    """Refuse an initial state over ``MAX_DOCUMENT_BYTES``; return its size."""
    size = len(bson.encode(fields))
    if size > MAX_DOCUMENT_BYTES:
        raise _too_large(f"The initial state ({_largest_field(fields)})", size)
    return size


def check_stored(state: Mapping[str, Any], document: Mapping[str, Any]) -> None:
    """Refuse a document that MongoDB does not take, for a state that has grown."""
    if (size := len(bson.encode(document))) > _MOST_STORED:
        raise _too_large(f"The state ({_largest_field(state)})", size, _MOST_STORED)


def outgrown_error(write: Append | NewSession) -> DocumentTooLargeError:
    """Return the error of a write whose state does not fit beside what is stored."""
    key, delta = write.key, write.delta
    scopes = {
        f"session {quoted(key.session_id)}": delta.session,
        f"user {quoted(key.user_id)}": delta.user,
        f"app {quoted(key.app_name)}": delta.app,
    }
    by = f"event {quoted(write.event_id)}" if isinstance(write, Append) else "it"
    fields = {**delta.app, **delta.user, **delta.session}
    return DocumentTooLargeError(
        f"The state of {' or '.join(name for name, part in scopes.items() if part)}"
        f" would take more than the 16 MB of a document with what {by} sets"
        f" ({_largest_field(fields)}). {_REMEDY}"
    )


def _too_large(
    what: str, size: int, most: int = MAX_DOCUMENT_BYTES
) -> DocumentTooLargeError:
    return DocumentTooLargeError(
        f"{what} takes {size / 1e6:.1f} MB; a document may have"
        f" {most / 1e6:.1f} MB. {_REMEDY}"
    )


def _largest_key(state: Mapping[str, Any]) -> str:
    if not state:
        return "it sets no state"
    largest = max(state, key=lambda key: len(key) + len(repr(state[key])))
    return f"its largest state key is {quoted(largest)}"


def _largest_field(fields: Mapping[str, Any]) -> str:
    return _largest_key({unescape_key(name): value for name, value in fields.items()})
