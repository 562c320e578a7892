"""Dead letters: names of changes whose handler failed, which are read again when asked.

A letter has no content: the change is read where it is stored, when somebody looks at
the letter or repeats it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial

from bson.timestamp import Timestamp
from google.adk.platform import time as platform_time

from mongo_session_service._public import public
from mongo_session_service.changes.change import Change
from mongo_session_service.changes.decoder import (
    ChangeRecord,
    state_record,
    updated_record,
)
from mongo_session_service.codec import bson_values
from mongo_session_service.codec.record import SessionRecord, state_fields
from mongo_session_service.consumers.fetcher import load_trimmed
from mongo_session_service.consumers.handler import (
    Handler,
    HandlerFailedError,
    call_handler,
    run_interruptibly,
)
from mongo_session_service.errors import StorageError, quoted
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Delete, Query, RefusedError, Update
from mongo_session_service.storage.transactions import Transaction

logger = logging.getLogger(__name__)


@public
@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A change that a consumer's handler failed on in every attempt."""

    consumer: str
    error: str
    """The last exception's type. Its text may quote the change, and is not kept."""
    attempts: int
    time: float
    """When the last attempt failed, in seconds since 1970."""
    id: Document = field(repr=False)
    """Its ``_id``, which a change has however often it is delivered."""
    record: ChangeRecord | None = field(default=None, repr=False)
    """The change as it is stored now; None if it is gone."""

    @property
    def change(self) -> Change:
        """The change, as it was stored when the letter was read.

        An event that was redacted is the redacted one. What was ``created`` or
        ``updated``, and ``state``, are as they are now, not as they were then.

        Raises:
            StorageError: it is gone, since the log was trimmed, or its session deleted;
                or this release of ADK cannot read its event.
        """
        if self.record is None:
            raise StorageError(f"{self.name} is no longer stored.")
        return self.record.change()

    @property
    def name(self) -> str:
        """The change's kind, what it is of, and its revision."""
        revision = self.id.get("revision")
        after = "" if revision is None else f", revision {revision}"
        owner = quoted("/".join(owner_of(self.id)))
        return f"The change {self.id['kind']!r} of {owner}{after}"


def new_dead_letter(
    consumer: str, record: ChangeRecord, error: BaseException, attempts: int
) -> DeadLetter:
    """Make the letter of a change whose last attempt failed now."""
    now, id_ = platform_time.get_time(), _letter_id(consumer, record)
    return DeadLetter(consumer, type(error).__name__, attempts, now, id_, record)


def store_letter_statement(letter: DeadLetter) -> Update:
    """Return the statement that stores a letter over an earlier one of its change."""
    kept = {"error": letter.error, "attempts": letter.attempts, "time": letter.time}
    return Update("dead_letters", {"_id": letter.id}, kept, upsert=True)


async def load_dead_letters(
    storage: Storage, consumer: str
) -> AsyncIterator[DeadLetter]:
    """Yield a consumer's dead letters, the oldest first."""
    named = {"_id.consumer": consumer}
    query = Query("dead_letters", named, order={"time": 1}, fields=("_id",))
    (found,) = await storage.read(query)
    now = await storage.latest_time(patient=True)
    for each in found:
        stored = await storage.find_one(Query("dead_letters", each))
        if stored is not None:
            yield DeadLetter(
                consumer,
                stored["error"],
                stored["attempts"],
                stored["time"],
                stored["_id"],
                await load_record(storage, stored["_id"], now),
            )


async def replay_dead_letters(
    storage: Storage, consumer: str, handler: Handler, *, transactional: bool
) -> int:
    """Call a handler once on each dead letter; return how many it handled.

    Letters whose change is gone are removed: there is nothing left to handle.
    """
    handled = 0
    async for letter in load_dead_letters(storage, consumer):
        removal = Delete("dead_letters", {"_id": letter.id})
        if letter.record is None:
            logger.warning(
                "A dead letter of consumer %r is removed. %s is no longer stored.",
                consumer,
                letter.name,
            )
            await storage.commit(removal)
            continue
        call = partial(call_handler, handler, letter.record)
        try:
            if transactional:
                await run_interruptibly(storage, call, partial(_remove_once, removal))
            else:
                await call()
                await storage.commit(removal)
            handled += 1
        except RefusedError:
            pass  # another caller has removed it meanwhile: nothing is handled twice
        except HandlerFailedError as failed:
            again = replace(
                letter,
                error=type(failed.error).__name__,
                attempts=letter.attempts + 1,
                time=platform_time.get_time(),
            )
            await storage.commit(store_letter_statement(again))
    return handled


async def _remove_once(removal: Delete, tx: Transaction, _: None) -> None:
    await tx.write(removal._replace(expected=1))


def _letter_id(consumer: str, record: ChangeRecord) -> Document:
    named = dict.fromkeys(("app_name", "user_id"))
    named |= zip(SessionKey._fields, record.owner, strict=False)
    id_ = {"consumer": consumer, "kind": record.kind, **named}
    match record.kind:
        case "appended" | "redacted":
            # The event's own id, too: a session may be created again under its name.
            id_ |= {"revision": record.event.revision, "event": record.event.id}
            return id_ if record.kind == "appended" else {**id_, "time": record.time}
        case "snapshot":
            begins, created = record.session.begins, record.session.created
            return {**id_, "revision": begins, "time": created}
        case "created":
            return {**id_, "time": record.session.created}
        case "updated":
            return {**id_, "created": record.session.created, "time": record.time}
        case _:
            return {**id_, "time": record.time}


def owner_of(id_: Document) -> tuple[str, ...]:
    parts = (id_.get(name) for name in SessionKey._fields)
    return tuple(each for each in parts if each is not None)


async def load_record(
    storage: Storage, id_: Document, not_before: Timestamp
) -> ChangeRecord | None:
    """Load a letter's change as it is stored now; None if it is gone.

    Not before a time at which the change was committed: a new primary may not know it.
    """
    kind, time, hooks = id_["kind"], id_.get("time", 0.0), storage.hooks
    owner = owner_of(id_)
    name = dict(zip(SessionKey._fields, owner, strict=False))
    match kind:
        case "deleted":
            return ChangeRecord(kind, owner, {}, time, hooks)
        case "appended" | "redacted":
            event = {**name, "revision": id_["revision"]}
            stored = Query("events", {"_id": event, "event.id": id_["event"]})
        case "snapshot":
            begin = {**name, "revision": 0}
            stored = Query("events", {"_id": begin, "create_time": time})
        case "created" | "updated":
            # Of this session, and of no later one of its id.
            at = time if kind == "created" else id_.get("created") or {"$exists": True}
            stored = Query("sessions", {"_id": name, "create_time": at})
        case _ if len(owner) == 1:
            stored = Query("app_states", {"_id": owner[0]})
        case _:
            stored = Query("user_states", {"_id": name})
    (documents,) = await storage.read(stored, not_before=not_before, patient=True)
    if not documents:
        return None
    (found,) = documents
    if kind == "snapshot":
        return await load_trimmed(storage, found)
    if kind == "updated":
        return updated_record(SessionRecord.read(found), hooks, time)
    if kind == "state":
        state = bson_values.decode_fields(state_fields(found))
        return state_record(owner, state, hooks, time)
    return ChangeRecord(kind, owner, {"document": found}, time, hooks)
