"""Partials: what running turns have produced and not stored, for readers anywhere.

ADK yields pieces of text as events with ``partial=True``, which have the id of the
whole event. Agents that run in parallel interleave theirs. Pieces that wait for a
reader are joined, so that they take no more memory than the text.

Readers in other processes receive them from a collection. All running turns of an event
loop share one writer, and each of its writes: so their number hardly matters to
MongoDB. Nothing waits for it but the end of the service.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from google.adk.events.event import Event
from google.genai import types

from mongo_session_service.backend import Backends
from mongo_session_service.codec.document_size import cut_by_size
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.codec.partials import cut_text, partial_document
from mongo_session_service.codec.record import decode_turn
from mongo_session_service.errors import (
    MongoSessionServiceError,
    StorageUnavailableError,
    quoted,
)
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.results import TurnInfo
from mongo_session_service.sessions import queries
from mongo_session_service.storage.failures import DUPLICATE_KEY
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Delete, Query
from mongo_session_service.storage.tasks import keep_running, wait_at_most
from mongo_session_service.telemetry import PARTIAL_SIZES, record_size
from mongo_session_service.turns.waiting_line import load_turn_states

logger = logging.getLogger(__name__)

_TOO_MUCH: Final = "Too much of it waits for MongoDB."


def is_text(event: Event) -> bool:
    """Whether an event is a piece of text: of an answer, or of thoughts."""
    parts = (event.content and event.content.parts) or []
    return bool(event.partial and len(parts) == 1 and parts[0].text)


class PartialText:
    """Pieces of one text, in order."""

    def __init__(self, first: Event) -> None:
        self._first = first
        self._texts = [_text(first)]

    def add_piece(self, event: Event) -> None:
        self._texts.append(_text(event))

    def joined(self) -> Event:
        """Return one partial event that has all of it."""
        if len(self._texts) == 1:
            return self._first
        text = "".join(self._texts)
        self._texts = [text]
        part = _text_part(self._first).model_copy(update={"text": text})
        content = types.Content(role=self._first.content.role, parts=[part])  # type: ignore[union-attr]
        self._first = self._first.model_copy(update={"content": content})
        return self._first


def _text_part(event: Event) -> types.Part:
    return event.content.parts[0]  # type: ignore[union-attr, index]


def _text(event: Event) -> str:
    return _text_part(event).text or ""


class EventInbox:
    """The queue of a running turn's events for one reader, in order.

    Pieces of one text are joined in it, and removed once their whole event is added.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, Event | PartialText] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __iter__(self) -> Iterator[Event]:
        for each in self._waiting.values():
            yield each if isinstance(each, Event) else each.joined()

    def copy(self) -> EventInbox:
        """Return an inbox with the same events, for another reader."""
        copied = EventInbox()
        for event in self:
            copied.add_event(event)
        return copied

    def add_event(self, event: Event) -> None:
        if not is_text(event):
            if not event.partial:
                for is_thought in (False, True):
                    self._waiting.pop((event.id, is_thought), None)
            self._waiting[object()] = event
            return
        text = (event.id, bool(_text_part(event).thought))
        if isinstance(waiting := self._waiting.get(text), PartialText):
            waiting.add_piece(event)
        else:
            self._waiting[text] = PartialText(event)

    def drain(self) -> list[Event]:
        drained = [*self]
        self._waiting = {}
        return drained


def _size(document: RawBSONDocument) -> int:
    return len(document.raw)


class PartialQueue:
    """The partials and notes of one running turn since the last write."""

    def __init__(self, turn: TurnInfo) -> None:
        self.turn = turn
        self._waiting = EventInbox()
        self._noted: list[Event | TurnInfo] = []
        self._begun_at = time.monotonic()
        # Above those of an earlier session with this id, which had the same epochs.
        self._number = round(turn.since.timestamp() * 1000) * 1000
        self._begun: set[str] = set()
        """The ids of events of which a piece was written."""
        self._incomplete: set[str] = set()
        """The ids of events of which a piece is missing: no more of them is written."""
        self.has_ended = False
        """Whether nothing more is added to it."""
        self.is_discarded = False
        """Whether nothing more is written: the session is gone."""

    def add_partial(self, event: Event) -> None:
        self._waiting.add_event(event)

    def add_status(self, turn: TurnInfo) -> None:
        self._noted += [*self._waiting.drain(), turn]

    def encode_all(self, hooks: Hooks, room: int) -> Iterator[RawBSONDocument]:
        """Remove the queued documents and yield them encoded, up to ``room`` bytes."""
        waiting, self._noted = [*self._noted, *self._waiting.drain()], []
        for each in () if self.is_discarded else waiting:
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
        is_first = event is not None and event.id not in self._begun
        document = partial_document(
            self.turn, number, now, event, hooks, is_first=is_first
        )
        self._number = number
        if event is not None:
            self._begun.add(event.id)
        return RawBSONDocument(bson.encode(document))

    def _leave_out(self, event: Event, reason: object) -> None:
        """Write no more of an event: readers receive it whole, once it is stored."""
        if not self._incomplete:
            logger.warning(
                "Some partials of the turn of session %s are not sent to other"
                " processes. %s",
                quoted(self.turn.session_id),
                reason,
            )
        self._incomplete.add(event.id)


class PartialWriter:
    """Writes the queues of one event loop together, a few times in a second."""

    def __init__(self) -> None:
        self._queues: dict[PartialQueue, None] = {}
        """Queues with something to write, in order."""
        self._unwritten: list[RawBSONDocument] = []
        """Documents that a failed write has left."""
        self._writing = asyncio.Lock()
        self._is_last = asyncio.Event()
        """Set once nothing more is to be written: it waits for nothing then."""
        self._task: asyncio.Task[None] | None = None

    def write_soon(self, queue: PartialQueue, backends: Backends) -> None:
        """Write a queue's documents: at once, or when the last write is over."""
        # The backends have this as a part, and would never go if it kept them.
        self._queues[queue] = None
        if self._task is None or self._task.done():
            self._task = keep_running(
                "The writer of partials", self._keep_writing, backends
            )

    async def settle(self) -> None:
        """Wait for the end of a write that is under way."""
        async with self._writing:
            pass

    async def finish(self, limit: float) -> None:
        """Write what is left, for ``limit`` seconds at most; the rest is lost."""
        self._is_last.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=limit)
            self._task.cancel()

    async def _keep_writing(self, backends: Backends) -> None:
        while self._queues or self._unwritten:
            backend = await backends.backend()
            storage = backend.storage
            queues, self._queues = self._queues, {}
            if not storage.has_transactions:
                return  # nobody can watch
            limits = storage.limits
            for each in queues:
                left = limits.partial_unwritten_bytes - sum(map(_size, self._unwritten))
                self._unwritten += each.encode_all(storage.hooks, left)
            async with self._writing:
                await self._write(storage)
            ended = [each for each in queues if each.has_ended]
            if self._unwritten:
                self._queues.update(dict.fromkeys(ended))
            elif ended:
                await _remove_gone(storage, [each.turn for each in ended])
            if self._unwritten:
                await asyncio.sleep(limits.partial_seconds)
            else:
                await wait_at_most(limits.partial_seconds, self._is_last)

    async def _write(self, storage: Storage) -> None:
        """Write all that is encoded; after a failure that passes it is kept."""
        most = storage.limits.partial_bytes
        for part in cut_by_size([*self._unwritten], most, _size):
            try:
                await _insert(storage, part)
                record_size(PARTIAL_SIZES, storage.database.name, len(part))
            except StorageUnavailableError:
                return
            except MongoSessionServiceError as error:
                logger.warning("Partials are not sent to other processes. %s", error)
            del self._unwritten[: len(part)]


async def announce_abandoned_turn(
    storage: Storage, taken_by: TurnInfo, reason: str
) -> None:
    """Write a status for the subscribers of the turn before: its process has died."""
    key, epoch = SessionKey(*taken_by[:3]), taken_by.epoch - 1
    before = queries.partials_of_turn(key, epoch, taken_by.session_create_time)
    partials = Query("partials", before, order=-1)
    # The turn is taken over all the same, also by a user who may not read partials.
    with suppress(MongoSessionServiceError):
        last = await storage.find_one(partials)
        if last is not None:  # else nobody has followed it for long
            turn = decode_turn(key, epoch, last)
            turn = turn._replace(status="abandoned", reason=reason)
            number = last["_id"]["n"] + 1
            since = taken_by.since
            document = partial_document(turn, number, since, None, storage.hooks)
            await _insert(storage, [document])


async def _remove_gone(storage: Storage, turns: Iterable[TurnInfo]) -> None:
    """Remove what was written of turns whose sessions are gone.

    Whoever removes a session removes its partials after that. So none is left that was
    written before; those that were written later are found here.
    """
    owners = {(SessionKey(*each[:3]), each.session_create_time) for each in turns}
    with suppress(MongoSessionServiceError):  # they expire by themselves
        stored = await load_turn_states(storage, {key for key, _ in owners})
        for key, create_time in owners:
            if key not in stored or stored[key].create_time != create_time:
                left = queries.partials_of_session(key, create_time)
                await storage.commit(Delete("partials", left, many=True))


async def _insert(storage: Storage, documents: Sequence[Mapping[str, Any]]) -> None:
    # As a command: the driver would make it a retryable write, a quarter more oplog.
    command = {
        "insert": f"{storage.prefix}partials",
        "documents": documents,
        "ordered": False,
        "writeConcern": storage.database.write_concern.document,
    }
    reply = await storage.command(command)
    codes = {each["code"] for each in reply.get("writeErrors", ())}
    if codes - {DUPLICATE_KEY}:  # of an earlier write whose reply was lost
        logger.warning("MongoDB refused partials: codes %s.", codes)
