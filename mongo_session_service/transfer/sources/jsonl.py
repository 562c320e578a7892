"""Sessions exported as JSON Lines."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO, Final, cast
from zlib import error as ZlibError  # noqa: N812  the module names it so

from google.adk.events.event import Event
from typing_extensions import override

from mongo_session_service.errors import SourceError
from mongo_session_service.transfer.items import (
    EVERYTHING,
    Item,
    Problem,
    Selection,
    SessionHeader,
    SharedState,
)
from mongo_session_service.transfer.lines import check_header, parse, to_item
from mongo_session_service.transfer.rows import UnreadableError

from .opening import Opened, drawn, in_thread

STREAM: Final = "-"
MAX_LINE_BYTES: Final = 128_000_000
"""No state is larger than 16 MB, nor an initial one; JSON may take a few times that."""


class JsonLinesSource(Opened):
    """The sessions of a file; ``.gz`` is unpacked, and ``-`` is standard input."""

    def __init__(self, path: str | Path) -> None:
        """Opens nothing yet."""
        self._path = str(path)
        self._file: BinaryIO | None = None

    @property
    def name(self) -> str:
        """The file."""
        return "standard input" if self._path == STREAM else self._path

    @override
    async def _open(self) -> None:
        if self._path == STREAM:
            # Not Python's own object: it cannot end while a thread is reading that.
            self._file = os.fdopen(sys.stdin.fileno(), "rb", closefd=False)
            return
        try:
            self._file = await in_thread(lambda: _opened(self._path))
        except OSError as error:
            message = f"{self._path!r} cannot be read: {error.strerror}."
            raise SourceError(message) from None

    @override
    async def _close(self) -> None:
        if self._file is not None and self._path != STREAM:
            self._file.close()

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """The file's items in its order."""
        async with aclosing(drawn(self._items())) as items:
            is_wanted = False
            async for item in items:
                match item:
                    case SharedState(app_name=app_name, user_id=None):
                        if selection.takes_app(app_name):
                            yield item
                        continue
                    case SharedState(app_name=app_name, user_id=str(user_id)):
                        if selection.takes_user(app_name, user_id):
                            yield item
                        continue
                    case SessionHeader():
                        is_wanted = selection.takes(item.key, item.update_time)
                if is_wanted or isinstance(item, Problem):
                    yield item

    def _items(self) -> Iterator[Item]:
        numbered = enumerate(self._lines(), start=1)
        try:
            _, first = next(numbered, (1, b""))
            check_header(first)
            yield from _Parser().items(numbered)
        except (EOFError, ZlibError, gzip.BadGzipFile):
            raise SourceError(
                "The file's compression is broken or truncated."
            ) from None
        except OSError as error:
            message = f"{self._path!r} cannot be read: {error.strerror or error}."
            raise SourceError(message) from None

    def _lines(self) -> Iterator[bytes]:
        if self._file is None:
            raise SourceError("The source is not open: use it in `async with`.")
        if self._path != STREAM:
            self._file.seek(0)
        while line := self._file.readline(MAX_LINE_BYTES):
            yield line


class _Parser:
    """Reads lines as items, and counts what the end of the file is to confirm."""

    def __init__(self) -> None:
        self._sessions = 0
        self._events = 0
        self._is_session_read = False

    def items(self, numbered: Iterator[tuple[int, bytes]]) -> Iterator[Item]:
        """The items of the lines after the first."""
        number = 1
        for number, line in numbered:
            where = f"line {number}"
            try:
                kind, value = parse(line)
                if kind == "end":
                    yield from self._ended(where, value)
                    if next(numbered, None):
                        yield Problem(f"line {number + 1}", "the file had ended before")
                    return
                yield from self._counted(to_item(kind, value))
            except UnreadableError as error:
                yield Problem(where, f"{error}{self._left_out(line)}")
        reason = "the file ends here, without its end; it seems truncated"
        yield Problem(f"line {number}", reason)

    def _counted(self, item: Item) -> Iterator[Item]:
        if isinstance(item, Event):
            self._events += 1
            if self._sessions == 0:
                raise UnreadableError("an event has to follow its session")
            if self._is_session_read:
                yield item
            return
        if isinstance(item, SessionHeader):
            self._sessions += 1
            self._is_session_read = True
        yield item

    def _left_out(self, line: bytes) -> str:
        if line.startswith(b'{"session":'):
            self._sessions += 1
            self._is_session_read = False
            return "; the events below it are left out with it"
        if line.startswith(b'{"event":'):
            self._events += 1
        return ""

    def _ended(self, where: str, value: object) -> Iterator[Problem]:
        found = {"sessions": self._sessions, "events": self._events}
        if value != found:
            yield Problem(where, f"the file should hold {value!r}, but holds {found!r}")


def _opened(path: str) -> BinaryIO:
    """A file, unpacked; closed by the source."""
    if path.endswith(".gz"):
        return cast("BinaryIO", gzip.GzipFile(path))
    return Path(path).open("rb")
