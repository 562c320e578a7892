"""Export: writing a source's sessions to a JSON Lines file."""

from __future__ import annotations

import gzip
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import BinaryIO, cast

from google.adk.events.event import Event

from mongo_session_service import errors
from mongo_session_service.model.wording import json_line
from mongo_session_service.transfer import export_file
from mongo_session_service.transfer.source_items import (
    EVERYTHING,
    Item,
    Problem,
    Selection,
    SessionHeader,
    SharedState,
    Source,
)
from mongo_session_service.transfer.sources.store_source import StoreSource


@dataclass(slots=True)
class Exported:
    """The result of an export."""

    sessions: int = 0
    events: int = 0
    states: int = 0
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
        file.write(export_file.HEADER.encode() + b"\n")
        async with aclosing(source.read(selection)) as items:
            async for item in items:
                line = _line(item)
                if isinstance(line, Problem):
                    if on_problem is None:
                        what = str(line).removesuffix(".")
                        message = f"Cannot be exported: {what}. Nothing was written."
                        raise errors.TransferError(message)
                    exported.problems += 1
                    on_problem(line)
                    continue
                file.write(line)
                exported.events += isinstance(item, Event)
                exported.states += isinstance(item, SharedState)
                if isinstance(item, SessionHeader):
                    exported.sessions += 1
                    on_progress(exported)
        end = export_file.encode_end(exported.sessions, exported.events)
        file.write(end.encode() + b"\n")
    on_progress(exported)
    return exported


def _line(item: Item) -> bytes | Problem:
    if isinstance(item, Problem):
        return item
    try:
        # Whoever looks at a file in a terminal is as safe as with any command.
        return json_line(export_file.encode_item(item)).encode() + b"\n"
    except (errors.InvalidInputError, errors.DocumentTooLargeError) as error:
        return Problem("an item", str(error))


@contextmanager
def _opened_output(path: str) -> Iterator[BinaryIO]:
    """Open a file that gets its name when it is complete, or standard output."""
    if path == export_file.STREAM:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if not path or path.endswith("/") or "\0" in path:
        shown = errors.without_passwords(path)
        raise errors.TransferError(f"{shown!r} is not the name of a file.")
    try:
        place = Path(path)
        # Replace the file that a link points to, not the link. Write to a pipe or
        # device itself, by this name: /dev/stdout may lead to no other.
        is_file = _is_file(place)
        written = _replacing(place.resolve()) if is_file else place.open("wb")
        with written as plain, _packed(plain, path) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        shown = errors.without_passwords(path)
        message = f"{shown!r} cannot be written: {error.strerror or error}."
        raise errors.TransferError(message) from None


def _is_file(place: Path) -> bool:
    """Tell whether a path is that of a regular file, or will be."""
    try:
        return stat.S_ISREG(place.stat().st_mode)
    except FileNotFoundError:
        return True


@contextmanager
def _replacing(place: Path) -> Iterator[BinaryIO]:
    """A new file of its owner alone, which takes another one's place and mode."""
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


@contextmanager
def _packed(plain: BinaryIO, path: str) -> Iterator[BinaryIO]:
    """The file, compressed if its name ends with .gz."""
    if not path.endswith(".gz"):
        yield plain
        return
    # Without a name and time, equal content gives equal bytes.
    with gzip.GzipFile("", "wb", fileobj=plain, mtime=0) as packed:
        yield cast("BinaryIO", packed)
