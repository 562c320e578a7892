"""Export files: sessions written and read as JSON Lines, format version 2.

The first line names the form; then each line is an object with one field::

    {"format": "mongo-session-service", "version": 2}
    {"app_state": {"app_name": ..., "state": {...}}}
    {"user_state": {"app_name": ..., "user_id": ..., "state": {...}}}
    {"session": {"app_name": ..., "user_id": ..., "session_id": ...,
                 "create_time": ..., "update_time": ..., "write_time": ...,
                 "title": ...,
                 "labels": {...}, "ttl": ..., "expire_time": ..., "log_begins": ...,
                 "forked_from": [...], "initial_state": {...}, "state": {...}}}
    {"event": {...}}
    {"family": {"app_name": ..., "user_id": ..., "family": ..., "create_time": ...,
                "shown": ..., "title": ..., "labels": {...}, "members": [...]}}
    {"end": {"sessions": 1, "events": 1}}

Events have ADK's field names and belong to the session above them, oldest first; keys
of state have no prefix and are sorted; times are seconds since 1970. The update_time is
that of the last event, and the write_time when it was stored, if it is known. A session
has a
title, labels, a ttl and an expire_time only if they are set, and an initial_state if
it is known. If its first events were trimmed, log_begins is how many, and initial_state
is the state after these. A fork names in forked_from what it was made of, the nearest
first: ``{"session_id": ..., "create_time": ..., "revision": ...}``. After all sessions,
a conversation with versions has a line, see
:mod:`mongo_session_service.codec.family_record`; each version has its title and labels
as well. In earlier files, a version has its place in its own line, as ``branch``. What
JSON cannot hold is tagged, as in :mod:`mongo_session_service.codec.extended_json`.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Annotated, Any, BinaryIO, Final, Literal, NamedTuple, cast
from zlib import error as ZlibError  # noqa: N812  the module names it so

from google.adk.events.event import Event
from pydantic import (
    BaseModel,
    Field,
    FiniteFloat,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from typing_extensions import override

from mongo_session_service.codec.bson_values import (
    UnreadableError,
    decode_value,
    json_form,
)
from mongo_session_service.codec.documents import encode_event_fields
from mongo_session_service.codec.extended_json import with_type_tags, without_type_tags
from mongo_session_service.codec.family_record import FamilyRecord
from mongo_session_service.codec.record import FORKED_FROM, INITIAL, LOG_BEGINS
from mongo_session_service.errors import (
    DocumentTooLargeError,
    InvalidInputError,
    SourceError,
    TransferError,
    without_passwords,
)
from mongo_session_service.model.metadata import (
    DETAILS,
    Details,
    StoredDetails,
)
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.validation import check_id
from mongo_session_service.model.wording import json_line
from mongo_session_service.transfer.sources import (
    ALTERED,
    EVERYTHING,
    BaseSource,
    Item,
    MalformedError,
    Problem,
    Selection,
    SessionHeader,
    SharedState,
    Source,
    StoreSource,
    iterate_in_threads,
    run_in_thread,
    validated_event,
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

_Count = Annotated[int, Field(ge=0, lt=2**63)]


class _Line(BaseModel, extra="forbid", strict=True):
    """Content of a line, by the names of its fields."""

    @field_validator(*SessionKey._fields, mode="before", check_fields=False)
    @classmethod
    def _check_id(cls, value: object, info: ValidationInfo) -> str:
        return check_id(f"its {info.field_name}", value)


class _AppStateLine(_Line):
    app_name: str
    state: dict[Any, Any]


class _UserStateLine(_AppStateLine):
    user_id: str


class _Origin(_Line):
    session_id: str
    create_time: FiniteFloat
    revision: _Count
    repeats: Literal[True] | None = None


class _SessionLine(_UserStateLine, Details):
    session_id: str
    create_time: FiniteFloat | None = None
    update_time: FiniteFloat
    write_time: FiniteFloat | None = None
    log_begins: _Count = 0
    forked_from: list[_Origin] = []
    branch: object = None
    """Of earlier files; families have lines of their own."""
    initial_state: dict[Any, Any] | None = None

    def header(self) -> SessionHeader:
        if self.log_begins and self.initial_state is None:
            raise MalformedError("its session has log_begins, but no initial state")
        details = self.model_dump(include={*DETAILS}, exclude_none=True)
        dumped = (each.model_dump(exclude_none=True) for each in self.forked_from)
        return SessionHeader(
            SessionKey(self.app_name, self.user_id, self.session_id),
            self.state,
            update_time=self.update_time,
            create_time=self.create_time,
            written=self.write_time,
            details=StoredDetails(**details),
            initial=self.initial_state,
            log_begins=self.log_begins,
            forked_from=[*dumped],
        )


def encode_item(item: Item) -> str:
    """Encode an item as a line, without the line end; of a problem, its event."""
    if isinstance(item, Problem):
        return tagged_json({"event": item.event})
    if isinstance(item, Event):
        return tagged_json({"event": decode_value(encode_event_fields(item))})
    if isinstance(item, SessionHeader):
        fields = session_fields(item)
        for name in fields.keys() & {"state", INITIAL}:
            fields[name] = _with_sorted_keys(fields[name])
        return tagged_json({"session": fields})
    if isinstance(item, FamilyRecord):
        return tagged_json({"family": item.to_json()})
    state = _with_sorted_keys(item.state)
    if item.user_id is None:
        return tagged_json({"app_state": {"app_name": item.app_name, "state": state}})
    owner = {"app_name": item.app_name, "user_id": item.user_id}
    return tagged_json({"user_state": {**owner, "state": state}})


def session_fields(header: SessionHeader) -> dict[str, Any]:
    """The content of a session's line, in its order."""
    times = {"create_time": header.create_time, "update_time": header.update_time}
    known = header.details.to_json() if header.details else {}
    if header.written is not None:
        times["write_time"] = header.written
    if header.log_begins:
        known[LOG_BEGINS] = header.log_begins
    if header.forked_from:
        known[FORKED_FROM] = [*header.forked_from]
    if header.initial is not None:
        known[INITIAL] = header.initial
    return {**header.key.id, **times, **known, "state": header.state}


def _with_sorted_keys(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: json_form(state[key]) for key in sorted(state)}


def encode_end(sessions: int, events: int) -> str:
    """Encode the last line, which a truncated file lacks."""
    return tagged_json({"end": {"sessions": sessions, "events": events}})


def tagged_json(value: Mapping[str, Any]) -> str:
    """Write a value as JSON on one line; what JSON cannot hold is tagged."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (TypeError, ValueError):
        return _tagged_text(value)
    return _tagged_text(value) if '"%' in text else text


def _tagged_text(value: Any) -> str:
    return json.dumps(with_type_tags(value), ensure_ascii=False, allow_nan=False)


def parse_line(line: bytes) -> tuple[str, Any]:
    """Parse a line: its only field, and its value without tags."""
    try:
        value = _DECODER.decode(line.decode())
        if b'"%' in line:
            value = without_type_tags(value)
    except (ValueError, TypeError, RecursionError):
        raise MalformedError("it is not valid JSON") from None
    if not isinstance(value, dict) or len(value) != 1:
        raise MalformedError("it is not an object of one field")
    return next(iter(value.items()))


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)
"""Created once: json.loads would create one for each line."""


def check_header(line: bytes) -> None:
    """Refuse a file of another format or version, by its first line."""
    try:
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
    """Decode the item that a line holds."""
    if kind not in {"app_state", "user_state", "session", "family", "event"}:
        raise MalformedError(f"it begins with {kind[:40]!r}, which is unknown")
    if not isinstance(value, dict):
        raise MalformedError(f"its {kind} is not an object")
    try:
        match kind:
            case "event":
                return validated_event(value)
            case "session":
                return _SessionLine.model_validate(value).header()
            case "family":
                return FamilyRecord.of_json(value)
            case "user_state":
                user = _UserStateLine.model_validate(value)
                return SharedState(user.app_name, user.user_id, user.state)
            case _:
                app = _AppStateLine.model_validate(value)
                return SharedState(app.app_name, None, app.state)
    except ValidationError as error:
        raise MalformedError(_first_fault(kind, error)) from None
    except UnreadableError:
        raise MalformedError("its family is not whole") from None


def _first_fault(kind: str, error: ValidationError) -> str:
    """Describe what is wrong with a line, without what it holds."""
    fault = error.errors(include_url=False, include_input=False)[0]
    if cause := fault.get("ctx", {}).get("error"):
        return str(cause).rstrip(".")
    where = ".".join(map(str, fault["loc"]))[:40]
    return f"{where!r} of its {kind}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


class _End(NamedTuple):
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
        is_path = self._path != STREAM
        return without_passwords(self._path) if is_path else "standard input"

    @override
    async def _open(self, exits: AsyncExitStack) -> None:
        if self._path == STREAM:
            # Not sys.stdin itself: Python could not exit while a thread reads it.
            self._plain = os.fdopen(sys.stdin.fileno(), "rb", closefd=False)
        else:
            try:
                # A named pipe blocks until somebody writes to it.
                path = Path(self._path)
                self._plain = await run_in_thread(lambda: path.open("rb"))
            except OSError as error:
                message = f"{self.name!r} cannot be read: {error.strerror}."
                raise SourceError(message) from None
            exits.callback(self._plain.close)
        self._file = self._plain
        if self._path.endswith(".gz"):
            self._file = cast("BinaryIO", gzip.GzipFile(fileobj=self._plain))
            exits.callback(self._file.close)

    @override
    def share_read(self) -> float | None:
        if self._plain is None:
            return None
        status = os.fstat(self._plain.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        return self._plain.tell() / max(status.st_size, 1)

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        read = _items_of_lines(self._numbered_lines())
        async with aclosing(iterate_in_threads(read)) as items:
            is_wanted = False
            async for item in items:
                if isinstance(item, SharedState):
                    if selection.takes_state(item.app_name, item.user_id):
                        yield item
                    continue
                if isinstance(item, FamilyRecord):
                    if selection.takes_state(*item.key[:2]):
                        yield item
                    continue
                if isinstance(item, SessionHeader):
                    changed = max(item.written or 0.0, item.update_time)
                    is_wanted = selection.takes(item.key, changed)
                if is_wanted or isinstance(item, Problem):
                    yield item

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


def _items_of_lines(lines: Iterator[tuple[int, bytes]]) -> Iterator[Item]:
    _, first = next(lines, (1, b""))
    check_header(first)
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


@dataclass(slots=True)
class Exported:
    """The result of an export."""

    sessions: int = 0
    events: int = 0
    states: int = 0
    unread: int = 0
    """Events, among these, that this release of ADK cannot read: they are exported as
    they are stored."""
    problems: int = 0
    """Things that could not be read; left out."""


async def export(
    source: Source,
    path: str | Path,
    selection: Selection = EVERYTHING,
    *,
    on_problem: Callable[[Problem], None] | None = None,
    on_progress: Callable[[Exported], None] = lambda _: None,
) -> Exported:
    """Write the selected sessions of an open source as JSON Lines, in its order.

    Args:
        source: Where the sessions are.
        path: The file; ``-`` is standard output, and ``.gz`` compresses. The file
            appears when it is complete, with the mode of the one that it replaces, or
            for its owner alone. What it holds is in clear.
        selection: Which sessions to export.
        on_problem: Called with what is left out; by default that is an error.
        on_progress: Called with what was written so far, whenever a session begins, and
            at the end.

    Raises:
        TransferError: something cannot be read, or the file cannot be written. Events
            that are sealed, and cannot be opened, are noticed before anything is.
    """
    exported = Exported()
    if on_problem is None and isinstance(source, StoreSource):
        await source.refuse_sealed(selection)
    with _opened_output(str(path)) as file:
        file.write(HEADER.encode() + b"\n")
        async with aclosing(source.read(selection)) as items:
            async for item in items:
                line = _encode_line(item)
                if isinstance(line, Problem):
                    if on_problem is None:
                        message = f"Cannot be exported: {line}. Nothing was written."
                        raise TransferError(message, hint="on_problem= continues.")
                    exported.problems += 1
                    on_problem(line)
                    continue
                file.write(line)
                exported.unread += isinstance(item, Problem)
                exported.events += isinstance(item, Event | Problem)
                exported.states += isinstance(item, SharedState)
                if isinstance(item, SessionHeader):
                    exported.sessions += 1
                    on_progress(exported)
        end = encode_end(exported.sessions, exported.events)
        file.write(end.encode() + b"\n")
    on_progress(exported)
    return exported


def _encode_line(item: Item) -> bytes | Problem:
    where = "an item"
    if isinstance(item, Problem):
        if item.event is None:
            return item
        where = item.where
    try:
        # Whoever looks at a file in a terminal is as safe as with any command.
        return json_line(encode_item(item)).encode() + b"\n"
    except (InvalidInputError, DocumentTooLargeError) as error:
        return Problem(where, str(error))
    except TypeError:
        return Problem(where, ALTERED)


@contextmanager
def _opened_output(path: str) -> Iterator[BinaryIO]:
    """Open a file that gets its name when it is complete, or standard output."""
    if path == STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if not path or path.endswith("/") or "\0" in path:
        shown = without_passwords(path)
        raise TransferError(f"{shown!r} is not the name of a file.")
    try:
        place = Path(path)
        if place.exists() and not place.is_file():  # as /dev/stdout, in a pipeline
            written: AbstractContextManager[BinaryIO] = place.open("wb")
        else:  # the file that a link points to, not the link
            written = _replacement_file(Path(os.path.realpath(place)))
        with written as plain:
            if not path.endswith(".gz"):
                yield plain
                return
            # Without a name and time, equal content gives equal bytes.
            with gzip.GzipFile("", "wb", fileobj=plain, mtime=0) as packed:
                yield cast("BinaryIO", packed)
    except BrokenPipeError:
        raise
    except OSError as error:
        shown = without_passwords(path)
        message = f"{shown!r} cannot be written: {error.strerror or error}."
        raise TransferError(message) from None


@contextmanager
def _replacement_file(place: Path) -> Iterator[BinaryIO]:
    """Open a new private file, which at the end takes another one's place and mode."""
    handle, partial = mkstemp(prefix=".export-", suffix=".partial", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(handle)
            if place.exists():
                os.fchmod(handle, stat.S_IMODE(place.stat().st_mode))
        Path(partial).replace(place)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
