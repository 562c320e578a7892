"""Export files: sessions as JSON Lines, format version 2.

The first line names the form; then each line is an object with one field::

    {"format": "mongo-session-service", "version": 2}
    {"app_state": {"app_name": ..., "state": {...}}}
    {"user_state": {"app_name": ..., "user_id": ..., "state": {...}}}
    {"session": {"app_name": ..., "user_id": ..., "session_id": ...,
                 "create_time": ..., "update_time": ..., "title": ...,
                 "labels": {...}, "ttl": ..., "expire_time": ..., "log_begins": ...,
                 "forked_from": [...], "initial_state": {...}, "state": {...}}}
    {"event": {...}}
    {"end": {"sessions": 1, "events": 1}}

Events have ADK's field names and belong to the session above them, oldest first; keys
of state have no prefix and are sorted; times are seconds since 1970. A session has a
title, labels, a ttl and an expire_time only if they are set, and an initial_state if
it is known. If its first events were trimmed, log_begins is how many, and initial_state
is the state after these. A fork names in forked_from what it was made of, the nearest
first: ``{"session_id": ..., "create_time": ..., "revision": ...}``. What JSON cannot
hold is an object of one field:
``{"%bytes": "<base64>"}``, ``{"%float": "nan"}``, ``{"%text": "<base64>"}`` for a
string with a lone surrogate, and ``{"%object": [[key, value], ...]}`` for an object
that has such a key or looks like one of these four.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, cast
from zlib import error as ZlibError  # noqa: N812  the module names it so

from google.adk.events.event import Event
from typing_extensions import override

from mongo_session_service.codec.bson_values import decode_value, json_form
from mongo_session_service.codec.documents import (
    FORKED_FROM,
    INITIAL,
    LOG_BEGINS,
    encode_event_fields,
)
from mongo_session_service.codec.extended_json import tagged, untagged
from mongo_session_service.errors import (
    InvalidInputError,
    SourceError,
    without_passwords,
)
from mongo_session_service.model import metadata
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.validation import check_id
from mongo_session_service.model.wording import counted
from mongo_session_service.transfer.source_items import (
    EVERYTHING,
    Item,
    Problem,
    Selection,
    SessionHeader,
    SharedState,
)
from mongo_session_service.transfer.sources.adk_rows import check_weight, validated
from mongo_session_service.transfer.sources.base_source import (
    BaseSource,
    MalformedError,
    drawn,
    in_thread,
)

STREAM: Final = "-"
"""The name of standard input and output."""

_FORMAT: Final = "mongo-session-service"
_VERSION: Final = 2
HEADER: Final = json.dumps({"format": _FORMAT, "version": _VERSION})
"""The first line."""

_MAX_LINE_BYTES: Final = 64_000_000
"""State and initial state have 16 MB at most; JSON may take twice that."""

_SESSION: Final = b'{"session":'
_EVENT: Final = b'{"event":'
"""How lines begin, whether the rest of them can be read or not."""

_FIELDS: Final[Mapping[str, AbstractSet[str]]] = {
    "app_state": {"app_name", "state"},
    "user_state": {"app_name", "user_id", "state"},
    "session": {
        *SessionKey._fields,
        *("create_time", "update_time", INITIAL, LOG_BEGINS, FORKED_FROM, "state"),
        *metadata.DETAILS,
    },
}


def encode_item(item: SharedState | SessionHeader | Event) -> str:
    """An item as a line, without the line end.

    Raises:
        InvalidInputError: the event or state cannot be stored.
    """
    if isinstance(item, Event):
        return json_text({"event": decode_value(encode_event_fields(item))})
    state = _sorted(item.state)
    if isinstance(item, SessionHeader):
        times = {"create_time": item.create_time, "update_time": item.update_time}
        known = item.details.to_json() if item.details else {}
        if item.log_begins:
            known[LOG_BEGINS] = item.log_begins
        if item.forked_from:
            known[FORKED_FROM] = [*item.forked_from]
        if item.initial is not None:
            known[INITIAL] = _sorted(item.initial)
        return json_text({"session": {**item.key.id, **times, **known, "state": state}})
    if item.user_id is None:
        return json_text({"app_state": {"app_name": item.app_name, "state": state}})
    owner = {"app_name": item.app_name, "user_id": item.user_id}
    return json_text({"user_state": {**owner, "state": state}})


def _sorted(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: json_form(state[key]) for key in sorted(state)}


def encode_end(sessions: int, events: int) -> str:
    """The last line, which a truncated file lacks."""
    return json_text({"end": {"sessions": sessions, "events": events}})


def json_text(value: Mapping[str, Any]) -> str:
    """A value as JSON on one line; what JSON cannot hold is tagged."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError):
        return _tagged_text(value)
    return _tagged_text(value) if '"%' in text else text


def _tagged_text(value: Any) -> str:
    return json.dumps(tagged(value), ensure_ascii=False, allow_nan=False)


def parse_line(line: bytes) -> tuple[str, Any]:
    """A line's only field, and its value without tags.

    Raises:
        MalformedError: it is not a JSON object of one field, or takes too much memory.
    """
    check_weight(line)
    try:
        value = _DECODER.decode(line.decode())
        if b'"%' in line:
            value = untagged(value)
    except (ValueError, TypeError, RecursionError):
        raise MalformedError("it is not valid JSON") from None
    if not isinstance(value, dict) or len(value) != 1:
        raise MalformedError("it is not an object of one field")
    return next(iter(value.items()))


def _no_constant(name: str) -> Any:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
"""Created once: json.loads would create one for each line."""


def check_header(line: bytes) -> None:
    """Refuse a file of another format or version, by its first line.

    Raises:
        SourceError: it has another format, or a version of another release.
    """
    try:
        check_weight(line)
        header = json.loads(line)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise SourceError(
            "Line 1: this is not a file of exported sessions; its first line would be"
            f" {HEADER}."
        )
    if header.get("version") != _VERSION:
        raise SourceError(
            f"Line 1: the file has format version {header.get('version')!r}, and this"
            f" release reads version {_VERSION}. Upgrade mongo-session-service."
        )


def decode_item(kind: str, value: Any) -> Item:
    """The item that a line holds.

    Raises:
        MalformedError: it is not a complete item.
    """
    if kind not in {*_FIELDS, "event"}:
        raise MalformedError(f"it begins with {kind[:40]!r}, which is unknown")
    if not isinstance(value, dict):
        raise MalformedError(f"its {kind} is not an object")
    if kind == "event":
        return validated(value)
    if unknown := sorted(value.keys() - _FIELDS[kind]):
        name = unknown[0][:40]
        raise MalformedError(f"its {kind} has the unknown field {name!r}")
    state = value.get("state")
    if not isinstance(state, dict):
        raise MalformedError(f"its {kind} has no state")
    try:
        return _header_or_state(kind, value, state)
    except InvalidInputError as error:
        raise MalformedError(str(error).rstrip(".")) from None


def _header_or_state(
    kind: str, value: dict[str, Any], state: dict[str, Any]
) -> SharedState | SessionHeader:
    names = (name for name in SessionKey._fields if name in _FIELDS[kind])
    ids = [check_id(f"its {name}", value.get(name)) for name in names]
    if kind != "session":
        return SharedState(ids[0], ids[1] if kind == "user_state" else None, state)
    create_time, initial = value.get("create_time"), value.get(INITIAL)
    if initial is not None and not isinstance(initial, dict):
        raise MalformedError("its session's initial state is not an object")
    begins = value.get(LOG_BEGINS, 0)
    if type(begins) is not int or not 0 <= begins < 2**63:
        raise MalformedError("its session's log_begins is not a number of events")
    if begins and initial is None:
        raise MalformedError("its session has log_begins, but no initial state")
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
        forked_from=_origins(value.get(FORKED_FROM, [])),
    )


def _origins(value: Any) -> list[dict[str, Any]]:
    fields = {"session_id": str, "create_time": float, "revision": int}
    for each in value if isinstance(value, list) else [None]:
        known = each if isinstance(each, dict) else {}
        kinds = {name: type(part) for name, part in known.items()}
        if kinds != fields or not 0 <= known["revision"] < 2**63:
            raise MalformedError("its session's forked_from is not a list of sessions")
        check_id("its origin's session_id", known["session_id"])
        _time(known["create_time"])
    return cast("list[dict[str, Any]]", value)


def _time(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedError("one of its times is not a number")
    if not math.isfinite(value):
        raise MalformedError("one of its times is not finite")
    return float(value)


_DETAILS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "title": metadata.check_stored_title,
    "labels": metadata.check_labels,
    "ttl": metadata.check_ttl,
    "expire_time": _time,
}


class _End(NamedTuple):
    """The last line."""

    counts: object


class JsonLinesSource(BaseSource):
    """The sessions of a file; ``.gz`` is decompressed, and ``-`` is standard input."""

    def __init__(self, path: str | Path) -> None:
        """Opens nothing yet."""
        self._path = str(path)
        self._plain: BinaryIO | None = None
        self._file: BinaryIO | None = None
        """That file, decompressed."""

    @property
    def name(self) -> str:
        """The file."""
        is_path = self._path != STREAM
        return without_passwords(self._path) if is_path else "standard input"

    @override
    async def _open(self) -> None:
        if self._path == STREAM:
            # Not sys.stdin itself: Python could not exit while a thread reads it.
            self._plain = os.fdopen(sys.stdin.fileno(), "rb", closefd=False)
        else:
            try:
                # A named pipe blocks until somebody writes to it.
                self._plain = await in_thread(self._open_file)
            except OSError as error:
                message = f"{self.name!r} cannot be read: {error.strerror}."
                raise SourceError(message) from None
        self._file = self._plain
        if self._path.endswith(".gz"):
            self._file = cast("BinaryIO", gzip.GzipFile(fileobj=self._plain))

    def _open_file(self) -> BinaryIO:
        return Path(self._path).open("rb")

    @override
    async def _close(self) -> None:
        if self._path != STREAM:
            for each in (self._file, self._plain):
                if each is not None:
                    each.close()

    @override
    def share_read(self) -> float | None:
        """The fraction of a regular file that has been read."""
        if self._plain is None:
            return None
        status = os.fstat(self._plain.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        return self._plain.tell() / max(status.st_size, 1)

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """The file's items, in order."""
        async with aclosing(drawn(self._items())) as items:
            is_wanted = False
            async for item in items:
                if isinstance(item, SharedState):
                    if selection.takes_user(item.app_name, item.user_id):
                        yield item
                    continue
                if isinstance(item, SessionHeader):
                    is_wanted = selection.takes(item.key, item.update_time)
                if is_wanted or isinstance(item, Problem):
                    yield item

    def _items(self) -> Iterator[Item]:
        lines = self._numbered_lines()
        _, first = next(lines, (1, b""))
        check_header(first)
        blank = _BlankLines()
        yield from _items_of_lines(filter(blank.is_other, lines))
        if blank.count:
            where = f"line {blank.first}"
            lines_found = counted(blank.count, "blank line")
            yield Problem(where, f"it is blank; the file has {lines_found}")

    def _numbered_lines(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        try:
            for number, line in enumerate(self._lines(), start=1):
                yield number, line
        except (EOFError, ZlibError, gzip.BadGzipFile):
            raise SourceError(
                f"Line {number + 1}: the file's compression is broken or truncated"
                " here. Copy or export it again."
            ) from None
        except OSError as error:
            reason = error.strerror or error
            message = f"{self.name}, line {number + 1}, cannot be read: {reason}."
            raise SourceError(message) from None

    def _lines(self) -> Iterator[bytes]:
        if self._file is None:
            raise SourceError("The source is not open: use it in `async with`.")
        if self._path != STREAM and self._file.seekable():
            self._file.seek(0)
        most = _MAX_LINE_BYTES + 1
        while line := self._file.readline(most):
            yield line
            while len(line) == most and not line.endswith(b"\n"):
                line = self._file.readline(most)  # the rest of one that is too long


class _BlankLines:
    """Counts lines without content: a file may hold any number, each of a byte."""

    def __init__(self) -> None:
        """Count nothing yet."""
        self.first = self.count = 0

    def is_other(self, numbered: tuple[int, bytes]) -> bool:
        """Tell whether a line has content; count it if not."""
        number, line = numbered
        if is_blank := line.isspace():
            self.first = self.first or number
            self.count += 1
        return not is_blank


def _items_of_lines(lines: Iterator[tuple[int, bytes]]) -> Iterator[Item]:
    counts = {"sessions": 0, "events": 0}
    is_session_read = False
    number = 1
    for number, line in lines:
        where = f"line {number}"
        item = _decode_line(where, line)
        if isinstance(item, _End):
            if item.counts != counts:
                reason = f"the file should hold {item.counts!r}, but holds {counts!r}"
                yield Problem(where, reason)
            if next(lines, None):
                yield Problem(f"line {number + 1}", "the file had ended before")
            return
        if line.startswith(_SESSION):
            counts["sessions"] += 1
            is_session_read = isinstance(item, SessionHeader)
        elif line.startswith(_EVENT):
            counts["events"] += 1
            if isinstance(item, Event) and not is_session_read:
                if counts["sessions"]:
                    continue
                item = Problem(where, "an event has to follow its session")
        yield item
    reason = "the file ends here, without its last line; it seems truncated"
    yield Problem(f"line {number}", reason)


def _decode_line(where: str, line: bytes) -> Item | _End:
    if len(line) > _MAX_LINE_BYTES:
        return Problem(where, f"it has over {_MAX_LINE_BYTES:,} bytes")
    try:
        kind, value = parse_line(line)
        return _End(value) if kind == "end" else decode_item(kind, value)
    except MalformedError as error:
        is_session = line.startswith(_SESSION)
        rest = "; its events are left out, too" if is_session else ""
        return Problem(where, f"{error}{rest}")
