"""Sessions on their way in: their place is held, and filled, and then they exist.

Events are stored first and the session's own document last, so that none exists for
anyone before it is whole. Until then a claim is in its place: a document of the same
``_id`` without revision, as a session being removed leaves one. Nobody is shown it, no
session can be created beside it, and who removes or prunes sessions removes what an
import has left with it.

None of this takes a transaction: one of an import that was killed would keep the next
from the same documents for a minute.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from google.adk.platform import time as platform_time
from pymongo import DeleteOne, InsertOne, ReplaceOne, UpdateOne
from pymongo.errors import PyMongoError

from mongo_session_service.codec.shapes import initial_updates
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import is_duplicate_key
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.errors import ConflictError
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.deletion import STEP
from mongo_session_service.transfer.batches import Incoming
from mongo_session_service.transfer.records import named

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

LIFETIME: Final = 3600.0
"""Seconds after which a claim has expired, if nobody goes on with it."""

PATIENCE: Final = 3.0
"""Seconds of waiting after which it is explained."""


class ChangedError(Exception):
    """What was planned for is not there any more."""


class Claims:
    """The places that one import holds."""

    def __init__(self, connection: Connection) -> None:
        self._at = connection
        self._holder = uuid.uuid4().hex

    async def take(self, wanted: Iterable[tuple[Incoming, Document | None]]) -> None:
        """Hold the places of sessions, or of parts of one, that are to be stored.

        Args:
            wanted: Each with what was found in its place: nothing, or a claim.

        Raises:
            ChangedError: something else is there by now.
            ConflictError: it is no claim of an import, or was lost between two parts.
        """
        writes: list[InsertOne[Document] | UpdateOne] = []
        renewed = 0
        for incoming, found in wanted:
            self._check(incoming, found)
            if found is None:
                writes.append(InsertOne({"_id": incoming.key.id, **self._claim()}))
            else:
                holder = {"_id": found["_id"], "claimed_by": found["claimed_by"]}
                writes.append(UpdateOne(_unexpired(holder), {"$set": self._claim()}))
                renewed += 1
        if writes:
            done = await self._at.sessions.bulk_write(writes, ordered=False)
            if done.matched_count != renewed:
                raise ChangedError

    def _check(self, incoming: Incoming, found: Document | None) -> None:
        holder = found and found.get("claimed_by")
        if found is not None and holder is None:
            message = f"The target is making or removing {named(incoming.key)} itself."
            raise ConflictError(message)
        if incoming.offset and holder != self._holder:
            message = (
                f"What was moved of {named(incoming.key)} was removed meanwhile, or"
                " another import has taken it over. Run it again."
            )
            raise ConflictError(message)

    def _claim(self) -> Document:
        expire_time = platform_time.get_time() + LIFETIME
        return {"expire_time": expire_time, "steps": 0, "claimed_by": self._holder}

    def _own(self, key: SessionKey) -> Document:
        return _unexpired({"_id": key.id, "claimed_by": self._holder})

    async def take_from(self, session: Document) -> Document:
        """Put a claim in the place of a session, whose events stay for now.

        Raises:
            ChangedError: it is another by now.
        """
        claim = {"_id": session["_id"], **self._claim()}

        async def work(txn: Txn) -> None:
            gone = await self._at.sessions.delete_one(as_read(session), session=txn)
            if gone.deleted_count == 0:
                raise ChangedError
            await self._at.sessions.insert_one(claim, session=txn)

        await patiently(self._at, SessionKey(**session["_id"]), work)
        return claim

    async def clear(self, key: SessionKey, after: int) -> None:
        """Remove the events of a claimed session after a revision, step by step.

        Raises:
            ChangedError: the claim was lost.
        """

        async def step(txn: Txn) -> bool:
            held = await self._at.sessions.update_one(
                self._own(key), {"$inc": {"steps": 1}}, session=txn
            )
            if held.matched_count == 0:
                raise ChangedError
            where = queries.events_after(key, after)
            rest = self._at.events.find(where, {"_id": 1}, session=txn).sort("_id", 1)
            ids = [each["_id"] for each in await rest.limit(STEP).to_list(None)]
            if ids:
                some = {"_id": {"$gte": ids[0], "$lte": ids[-1]}}
                await self._at.events.delete_many(some, session=txn)
            return len(ids) == STEP

        while await patiently(self._at, key, step):
            pass

    async def begin(self, whole: Iterable[tuple[Incoming, Document | None]]) -> None:
        """Store the initial states of claimed sessions that are kept apart.

        Args:
            whole: Each with what was found in its place, which may have left another.
        """
        writes: list[UpdateOne | DeleteOne] = []
        for incoming, found in whole:
            apart = initial_updates([incoming.created()])
            writes += [UpdateOne(*update, upsert=True) for update in apart]
            if found is not None and not apart:
                writes.append(DeleteOne({"_id": incoming.key.event_id(0)}))
        if writes:
            await self._at.events.bulk_write(writes, ordered=False)

    async def settle(self, whole: Iterable[Incoming]) -> None:
        """Make sessions exist, all of whose events are stored.

        Raises:
            ChangedError: the claim to one was lost; the others exist.
        """
        writes = [
            ReplaceOne(self._own(each.key), each.session_document()) for each in whole
        ]
        if writes:
            done = await self._at.sessions.bulk_write(writes, ordered=False)
            if done.matched_count != len(writes):
                raise ChangedError


async def patiently(
    connection: Connection, key: SessionKey, work: Callable[[Txn], Awaitable[Result]]
) -> Result:
    """Run a transaction; say what it waits for, if it has to."""
    started = time.monotonic()
    is_told = False

    async def told(txn: Txn) -> Result:
        nonlocal is_told
        if not is_told and time.monotonic() - started > PATIENCE:
            is_told = True
            logger.warning(
                "Waiting for another writer of %s. If that was an import that was"
                " killed, MongoDB ends its transaction within a minute.",
                named(key),
            )
        return await work(txn)

    return await uninterrupted(connection.transaction(told))


@contextmanager
def changes_told() -> Iterator[None]:
    """What is there against the plan was put there since."""
    try:
        yield
    except PyMongoError as error:
        if is_duplicate_key(error):
            raise ChangedError from None
        raise


def as_read(session: Document) -> Document:
    """The filter for a session that has not changed since it was read."""
    return {name: session[name] for name in ("_id", "revision", "create_time")}


def _unexpired(claim: Document) -> dict[str, Any]:
    # Who removes it sets its time to zero first.
    return {**claim, "expire_time": {"$gt": 0.0}}
