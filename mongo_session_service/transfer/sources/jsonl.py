"""Source: sessions exported as JSON Lines."""

from __future__ import annotations

import gzip
import os
import stat
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast
from zlib import error as ZlibError  # noqa: N812  the module names it so

from google.adk.events.event import Event
from typing_extensions import override

from mongo_session_service.errors import SourceError
from mongo_session_service.transfer import records
from mongo_session_service.transfer.jsonl import check_header, parse, to_item
from mongo_session_service.transfer.sources import base

STREAM: Final = "-"
MAX_LINE_BYTES: Final = 64_000_000
"""State and initial state have 16 MB at most; JSON may take twice that."""

_SESSION: Final = b'{"session":'
"""How a session's line begins, whether the rest of it can be read or not."""


class _End(NamedTuple):
    """The last line."""

    counts: object


class JsonLinesSource(base.BaseSource):
    """The sessions of a file; ``.gz`` is decompressed, and ``-`` is standard input."""

    def __init__(self, path: str | Path) -> None:
        """Opens nothing yet."""
        self._path = str(path)
        self._plain: BinaryIO | None = None
        self._file: BinaryIO | None = None
        """The same file, decompressed."""

    @property
    def name(self) -> str:
        """The file."""
        return "standard input" if self._path == STREAM else self._path

    @override
    async def _open(self) -> None:
        if self._path == STREAM:
            # Not sys.stdin itself: Python could not exit while a thread reads it.
            self._plain = os.fdopen(sys.stdin.fileno(), "rb", closefd=False)
        else:
            try:
                self._plain = await base.in_thread(lambda: _opened(self._path))
            except OSError as error:
                message = f"{self._path!r} cannot be read: {error.strerror}."
                raise SourceError(message) from None
        self._file = self._plain
        if self._path.endswith(".gz"):
            self._file = cast("BinaryIO", gzip.GzipFile(fileobj=self._plain))

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

    async def read(
        self, selection: records.Selection = records.EVERYTHING
    ) -> AsyncGenerator[records.Item]:
        """The file's items, in order."""
        async with aclosing(base.drawn(self._items())) as items:
            is_wanted = False
            async for item in items:
                if isinstance(item, records.SharedState):
                    if selection.takes_user(item.app_name, item.user_id):
                        yield item
                    continue
                if isinstance(item, records.SessionHeader):
                    is_wanted = selection.takes(item.key, item.update_time)
                if is_wanted or isinstance(item, records.Problem):
                    yield item

    def _items(self) -> Iterator[records.Item]:
        numbered = self._numbered()
        _, first = next(numbered, (1, b""))
        check_header(first)
        yield from _items(numbered)

    def _numbered(self) -> Iterator[tuple[int, bytes]]:
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
        most = MAX_LINE_BYTES + 1
        while line := self._file.readline(most):
            yield line
            while len(line) == most and not line.endswith(b"\n"):
                line = self._file.readline(most)  # the rest of one that is too long


def _items(numbered: Iterator[tuple[int, bytes]]) -> Iterator[records.Item]:
    """The items of the lines after the first; the last line has their number."""
    counts = {"sessions": 0, "events": 0}
    is_session_read = False
    number = 1
    for number, line in numbered:
        where = f"line {number}"
        item = _item(where, line)
        if isinstance(item, _End):
            if item.counts != counts:
                reason = f"the file should hold {item.counts!r}, but holds {counts!r}"
                yield records.Problem(where, reason)
            if next(numbered, None):
                where = f"line {number + 1}"
                yield records.Problem(where, "the file had ended before")
            return
        if isinstance(item, records.SessionHeader) or line.startswith(_SESSION):
            counts["sessions"] += 1
            is_session_read = isinstance(item, records.SessionHeader)
        elif isinstance(item, Event) or line.startswith(b'{"event":'):
            counts["events"] += 1
            if isinstance(item, Event) and not is_session_read:
                if counts["sessions"]:
                    continue
                item = records.Problem(where, "an event has to follow its session")
        yield item
    reason = "the file ends here, without its last line; it seems truncated"
    yield records.Problem(f"line {number}", reason)


def _opened(path: str) -> BinaryIO:
    """An open file; the source closes it."""
    return Path(path).open("rb")


def _parsed(line: bytes) -> tuple[str, object]:
    if len(line) > MAX_LINE_BYTES:
        raise base.UnreadableError(f"it has over {MAX_LINE_BYTES:,} bytes")
    return parse(line)


def _item(where: str, line: bytes) -> records.Item | _End:
    try:
        kind, value = _parsed(line)
        return _End(value) if kind == "end" else to_item(kind, value)
    except base.UnreadableError as error:
        is_session = line.startswith(_SESSION)
        rest = "; its events are left out, too" if is_session else ""
        return records.Problem(where, f"{error}{rest}")
