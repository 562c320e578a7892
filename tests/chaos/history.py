"""Records of a run: calls, answers, and what readers received.

Every process has a journal, a file of JSON lines. A line is written before a call and
another after its answer, so that the journal of a killed process tells what it had
begun.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple


class Key(NamedTuple):
    """The key of a session."""

    app: str
    user: str
    session: str


@dataclass(slots=True)
class Operation:
    """A call and how it was answered."""

    name: str
    """Unique in the whole run; an append's is its event's id."""
    loop: str
    """The event loop it was made in, which has a connection of its own."""
    kind: str
    key: Key
    start: float
    """On the machine's monotonic clock, which all its processes share."""
    born: str = ""
    """The create that made its session, for an append."""
    delta: dict[str, Any] = field(default_factory=dict)
    """State that a create or an append sets, keys prefixed by scope."""
    is_owner: bool = False
    """True if nobody else writes to the session."""
    end: float = float("inf")
    outcome: str = "unknown"
    """``ok``, ``failed`` if it had no effect, or ``unknown``."""
    error: str = ""
    found: dict[str, Any] = field(default_factory=dict)
    """The content of the answer."""


class Received(NamedTuple):
    """A change, as a reader received it."""

    kind: str
    key: Key
    revision: int | None
    event: str | None


@dataclass(slots=True)
class Reader:
    """A subscription or a consumer in one process, and all it received."""

    name: str
    kind: str
    """``watch``, ``follow`` for a single session's, or ``consume``."""
    ready: float
    """From when on it received everything."""
    received: list[Received] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    """How many of these a consumer received when a commit returned."""
    ended: str = ""
    """``end`` if it saw the last change of the run; else why it stopped."""
    state: dict[str, Any] | None = None
    """State that a follower has put together in the end."""


@dataclass(slots=True)
class StoredLog:
    """A session as MongoDB holds it."""

    key: Key
    state: dict[str, Any]
    revision: int
    events: list[tuple[int, str, dict[str, Any]]]
    """Revision, id and delta of each, in order."""


@dataclass(slots=True)
class Shared:
    """The state of an app, or of a user."""

    state: dict[str, Any]
    revision: int


@dataclass(slots=True)
class Stored:
    """All that MongoDB holds in the end."""

    sessions: dict[Key, StoredLog] = field(default_factory=dict)
    orphans: list[str] = field(default_factory=list)
    """Events whose session is not stored."""
    remnants: list[str] = field(default_factory=list)
    """Tombstones that deletes have left."""
    shared: dict[tuple[str, ...], Shared] = field(default_factory=dict)
    """By app, and by app and user."""
    open_transactions: int = 0


@dataclass(slots=True)
class History:
    """A run: what was asked and answered, received, and stored."""

    operations: dict[str, Operation]
    readers: list[Reader]
    stored: Stored


class Journal:
    """One process's record; what is in it survives that process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **line: Any) -> None:
        os.write(self._file, json.dumps(line, default=str).encode() + b"\n")

    def call(self, operation: Operation) -> None:
        self.write(
            call=operation.name,
            loop=operation.loop,
            kind=operation.kind,
            key=operation.key,
            at=operation.start,
            born=operation.born,
            delta=operation.delta,
            owner=operation.is_owner,
        )

    def answer(self, name: str, outcome: str, error: str = "", **found: Any) -> None:
        self.write(
            answer=name, at=time.monotonic(), is_=outcome, error=error, found=found
        )


def read_journals(paths: Iterable[Path]) -> tuple[dict[str, Operation], list[Reader]]:
    """Read the journals of a run.

    Raises:
        ValueError: a line is damaged that is not the last of its journal.
    """
    operations: dict[str, Operation] = {}
    readers: dict[str, Reader] = {}
    for path in paths:
        *lines, torn = path.read_bytes().split(b"\n")
        del torn  # a line that a killed process has not finished, or nothing
        for line in lines:
            _take(json.loads(line), operations, readers)
    return operations, list(readers.values())


def _take(
    line: dict[str, Any],
    operations: dict[str, Operation],
    readers: dict[str, Reader],
) -> None:
    if name := line.get("call"):
        operations[name] = Operation(
            name,
            line["loop"],
            line["kind"],
            Key(*line["key"]),
            line["at"],
            line["born"],
            line["delta"],
            line["owner"],
        )
    elif name := line.get("answer"):
        operation = operations[name]
        operation.end, operation.outcome = line["at"], line["is_"]
        operation.error, operation.found = line["error"], line["found"]
    elif name := line.get("reader"):
        readers[name] = Reader(name, line["kind"], line["at"])
    elif name := line.get("to"):
        received = Received(
            line["kind"], Key(*line["key"]), line["revision"], line["event"]
        )
        readers[name].received.append(received)
    elif name := line.get("committed"):
        readers[name].committed.append(len(readers[name].received))
    elif name := line.get("ended"):
        readers[name].ended, readers[name].state = line["why"], line.get("state")
