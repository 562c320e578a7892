"""Exporter: sessions written as JSON Lines."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

from google.adk.events.event import Event

from mongo_session_service.errors import (
    DocumentTooLargeError,
    InvalidInputError,
    TransferError,
)
from mongo_session_service.transfer import jsonl
from mongo_session_service.transfer.records import (
    EVERYTHING,
    Problem,
    Selection,
    SessionHeader,
    SharedState,
    Source,
)

STREAM: Final = "-"


@dataclass(slots=True)
class Exported:
    """What an export wrote."""

    sessions: int = 0
    events: int = 0
    states: int = 0
    problems: int = 0
    """What could not be read, and was left out."""


async def export(
    source: Source,
    path: str | Path,
    selection: Selection = EVERYTHING,
    *,
    on_problem: Callable[[Problem], None] | None = None,
    on_progress: Callable[[Exported], None] = lambda _: None,
) -> Exported:
    """Write what is selected of an open source as JSON Lines, sorted as it is read.

    Args:
        source: What to write.
        path: Where to; ``-`` is standard output, and ``.gz`` is packed. The file
            appears when it is complete.
        selection: Which sessions.
        on_problem: Told of what is left out; by default that is an error.
        on_progress: Told after each session.

    Raises:
        TransferError: something cannot be read, or the file not be written.
    """
    exported = Exported()
    with _written(str(path)) as file:
        file.write(jsonl.as_text(jsonl.HEADER).encode() + b"\n")
        async with aclosing(source.read(selection)) as items:
            async for item in items:
                if not isinstance(item, Problem):
                    try:
                        line = jsonl.to_line(item)
                    except (InvalidInputError, DocumentTooLargeError) as error:
                        item = Problem("an item", str(error))  # noqa: PLW2901
                if isinstance(item, Problem):
                    if on_problem is None:
                        message = f"Cannot be exported: {item}. Nothing was written."
                        raise TransferError(message)
                    exported.problems += 1
                    on_problem(item)
                    continue
                file.write(line.encode() + b"\n")
                match item:
                    case Event():
                        exported.events += 1
                    case SessionHeader():
                        exported.sessions += 1
                        on_progress(exported)
                    case SharedState():
                        exported.states += 1
        end = jsonl.end_line(exported.sessions, exported.events)
        file.write(end.encode() + b"\n")
    return exported


@contextmanager
def _written(path: str) -> Iterator[BinaryIO]:
    """A file that takes its place once it is complete."""
    if path == STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        # What a link names is replaced, not the link.
        place = Path(path).resolve()
        if place.exists() and not place.is_file():
            # A pipe or a device is written to; a file in its place would be another.
            with place.open("wb") as plain, _packed(plain, path) as file:
                yield file
            return
        partial = place.with_name(f"{place.name}.partial")
        try:
            with partial.open("wb") as plain, _packed(plain, path) as file:
                yield file
            partial.replace(place)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except BrokenPipeError:
        raise
    except OSError as error:
        message = f"{path!r} cannot be written: {error.strerror or error}."
        raise TransferError(message) from None


@contextmanager
def _packed(plain: BinaryIO, path: str) -> Iterator[BinaryIO]:
    """The file as it is to be written to: packed, if its name asks for it."""
    if not path.endswith(".gz"):
        yield plain
        return
    # Without a name and time, equal content gives equal bytes.
    with gzip.GzipFile("", "wb", fileobj=plain, mtime=0) as packed:
        yield cast("BinaryIO", packed)
