"""Partial writer: stores what running turns say, for readers in other processes.

All running turns of an event loop share one writer, and each of its writes: so their
number hardly matters to MongoDB. Nothing waits for it but the end of the service.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from google.adk.events.event import Event
from pymongo.errors import PyMongoError

from mongo_session_service.backend import Backends
from mongo_session_service.codec.document_size import cut_by_size
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.codec.partials import (
    cut_text,
    decode_turn,
    partial_document,
)
from mongo_session_service.errors import MongoSessionServiceError, quoted
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.results import TurnInfo
from mongo_session_service.sessions import queries
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.retries import is_transient
from mongo_session_service.storage.tasks import Supervisor, background
from mongo_session_service.storage.translation import DUPLICATE_KEY, translate_error
from mongo_session_service.telemetry import PARTIAL_SIZES, record_size
from mongo_session_service.turns.partial_texts import EventInbox

logger = logging.getLogger(__name__)

_SUPERVISOR: Final = Supervisor("The writer of what running turns say")
_TOO_MUCH: Final = "Too much of it waits for MongoDB."


def _size(document: RawBSONDocument) -> int:
    return len(document.raw)


class PartialQueue:
    """The partials and notes of one running turn since the last write."""

    def __init__(self, turn: TurnInfo) -> None:
        self.turn = turn
        self._said = EventInbox()
        self._noted: list[Event | TurnInfo] = []
        self._begun_at = time.monotonic()
        # Above those of an earlier session with this id, which had the same epochs.
        self._number = round(turn.since.timestamp() * 1000) * 1000
        self._incomplete: set[str] = set()
        """The ids of events of which a piece is missing: no more of them is written."""

    def add_event(self, event: Event) -> None:
        """Add a partial event."""
        self._said.add_event(event)

    def note_status(self, turn: TurnInfo) -> None:
        """Note how the turn stands from now on."""
        self._noted += [*self._said.drain(), turn]

    def encode_all(self, hooks: Hooks, room: int) -> Iterator[RawBSONDocument]:
        """Take what waits off the queue, encoded, in order, up to so many bytes."""
        waiting, self._noted = [*self._noted, *self._said.drain()], []
        for each in waiting:
            if isinstance(each, TurnInfo):
                self.turn = each
                yield self._encode(None, hooks)
                continue
            for event in cut_text(each):
                if event.id in self._incomplete:
                    break
                try:
                    document = self._encode(event, hooks)
                except MongoSessionServiceError as error:
                    self._leave_out(event, error)
                    break
                room -= _size(document)
                if room < 0:
                    self._leave_out(event, _TOO_MUCH)
                    break
                yield document

    def _encode(self, event: Event | None, hooks: Hooks) -> RawBSONDocument:
        # By the server's clock, which removes it: another may be wrong.
        now = self.turn.since + timedelta(seconds=time.monotonic() - self._begun_at)
        number = self._number + 1
        document = partial_document(self.turn, number, now, event, hooks)
        self._number = number
        return RawBSONDocument(bson.encode(document))

    def _leave_out(self, event: Event, reason: object) -> None:
        """Write no more of an event: readers receive it whole, once it is stored."""
        if not self._incomplete:
            logger.warning(
                "Other processes do not receive all that the turn of session %s says"
                " before it is stored. %s",
                quoted(self.turn.session_id),
                reason,
            )
        self._incomplete.add(event.id)


class PartialWriter:
    """Writes the queues of one event loop, all at once, a few times in a second."""

    def __init__(self, backends: Backends) -> None:
        self._backends = backends
        self._queues: dict[PartialQueue, None] = {}
        """Queues with something to write, in order."""
        self._unwritten: list[RawBSONDocument] = []
        """Documents that a failed write has left."""
        self._task: asyncio.Task[None] | None = None

    def write_soon(self, queue: PartialQueue) -> None:
        """Write what waits in a queue: at once, or when the last write is over."""
        self._queues[queue] = None
        if self._task is None or self._task.done():
            self._task = background(_SUPERVISOR.run_task(self._keep_writing))

    async def finish(self, limit: float) -> None:
        """Write what is left; what takes longer than these seconds is lost."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=limit)
            self._task.cancel()

    async def _keep_writing(self) -> None:
        while self._queues or self._unwritten:
            async with self._backends.in_call() as backend:
                connection = backend.connection
            queues, self._queues = self._queues, {}
            if not connection.has_transactions:
                return  # nobody can watch
            limits = connection.limits
            for each in queues:
                left = limits.partial_unwritten_bytes - sum(map(_size, self._unwritten))
                self._unwritten += each.encode_all(connection.hooks, left)
            with suppress(MongoSessionServiceError):
                async with connection.translating_errors():
                    await self._write(connection)
            await asyncio.sleep(limits.partial_seconds)

    async def _write(self, connection: Connection) -> None:
        """Write all that is encoded; after a failure that passes it is kept."""
        most = connection.limits.partial_bytes
        for part in cut_by_size([*self._unwritten], most, _size):
            try:
                await _insert(connection, part)
                record_size(PARTIAL_SIZES, connection.database.name, len(part))
            except PyMongoError as error:
                if is_transient(error):
                    return
                logger.warning(
                    "Other processes do not receive what running turns say. %s",
                    translate_error(error),
                )
            del self._unwritten[: len(part)]


async def announce_abandoned(
    connection: Connection, key: SessionKey, epoch: int, time: datetime
) -> None:
    """Tell the followers of a turn that its process has died, if possible."""
    said = connection.routed(queries.partials_of_turn(key, epoch))
    # The turn is taken over all the same, also by a user who may not read partials.
    with suppress(PyMongoError):
        last = await connection.partials.find_one(said, sort=[("_id", -1)])
        if last is not None:  # else nobody has followed it for long
            turn = decode_turn(key, epoch, last)._replace(status="abandoned")
            number = last["_id"]["n"] + 1
            document = partial_document(turn, number, time, None, connection.hooks)
            await _insert(connection, [document])


async def _insert(
    connection: Connection, documents: Sequence[Mapping[str, Any]]
) -> None:
    # As a command: the driver would make it a retryable write, a quarter more oplog.
    command = {
        "insert": connection.partials.name,
        "documents": documents,
        "ordered": False,
        "writeConcern": connection.database.write_concern.document,
    }
    reply = await connection.database.command(command)
    codes = {each["code"] for each in reply.get("writeErrors", ())}
    if codes - {DUPLICATE_KEY}:  # of an earlier write whose reply was lost
        logger.warning("MongoDB refused what running turns say: codes %s.", codes)
