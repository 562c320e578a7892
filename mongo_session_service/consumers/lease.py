"""Consumer lease: one active reader per name, fenced by a rising epoch.

The lease has its own document, so that its renewals do not conflict with a handler's
transaction, which ends with the checkpoint. A reader takes the lease and raises its
epoch in one step. It writes epoch and owner into the checkpoint, unless that has a
higher epoch, and includes them in the filter of every save: a replaced holder matches
nothing and saves nothing. All times are the server's; clocks need not be synchronised.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pymongo.errors import DuplicateKeyError, NetworkTimeout, PyMongoError

from mongo_session_service import errors
from mongo_session_service.consumers import checkpoint as checkpoints
from mongo_session_service.consumers.checkpoint import Position
from mongo_session_service.consumers.handler import Work
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.model.records import Document

LEASE: Final = 5.0
"""Seconds without a renewal after which another reader can take over."""

RENEWAL: Final = 1.0  # seconds
_RETRY: Final = 0.5  # seconds


@dataclass(frozen=True, slots=True)
class Claim:
    """One reader's claim in the lease document of a name."""

    connection: Connection
    name: str
    owner: str

    async def renew(self, epoch: int) -> bool:
        """Renew the lease, stored again if it was dropped; False if it is another's."""
        mine = {"_id": self.name, "owner": self.owner}
        renewed = [{"$set": {"epoch": epoch, **_expiry()}}]
        leases, checkpoints = self.connection.leases, self.connection.checkpoints
        if (await leases.update_one(mine, renewed)).matched_count:
            return True
        checkpoint = await checkpoints.find_one({"_id": self.name}, {"owner": 1})
        if checkpoint is None:
            return True  # dropped, or erased with its app: the next save finds out
        if checkpoint.get("owner") != self.owner:
            return False
        try:
            await leases.update_one(mine, renewed, upsert=True)
        except DuplicateKeyError:
            return False
        return True

    async def take(self, floor: int) -> int | None:
        """Take the lease if it is free; its new epoch, which is above ``floor``.

        A cancellation waits for the outcome.
        """
        has_expired = {"$lt": ["$expires_at", "$$NOW"]}
        is_free = {"$in": [{"$ifNull": ["$owner", None]}, [None, self.owner]]}
        above = {"$add": [{"$max": ["$epoch", floor]}, 1]}
        taken = {"_id": "$_id", "owner": self.owner, "epoch": above, **_expiry()}
        take = {"$cond": [{"$or": [has_expired, is_free]}, taken, "$$ROOT"]}
        taking = self.connection.plain(self.connection.leases).find_one_and_update(
            {"_id": self.name},
            [{"$replaceWith": take}],
            upsert=True,
            return_document=True,
        )
        try:
            lease = await uninterrupted(asyncio.wait_for(taking, LEASE))
        except TimeoutError:
            raise NetworkTimeout(f"no answer within {LEASE:g} seconds") from None
        return lease["epoch"] if lease["owner"] == self.owner else None

    async def enter(self, epoch: int) -> Document | None:
        """Put this reader into the checkpoint; None if it has a higher epoch."""
        checkpoint: Document | None = await self.connection.retry(
            self.connection.plain(self.connection.checkpoints).find_one_and_update,
            {"_id": self.name, "epoch": {"$lt": epoch}},
            {"$set": {"epoch": epoch, "owner": self.owner, "serial": 0}},
            return_document=True,
        )
        return checkpoint

    async def give_up(self) -> None:
        """Release the lease; if that takes long, it expires by itself."""
        with suppress(PyMongoError, TimeoutError):
            async with asyncio.timeout(LEASE):
                await self.connection.leases.update_one(
                    {"_id": self.name, "owner": self.owner}, {"$set": {"owner": None}}
                )


class Lease:
    """The exclusive right to read and to save under a consumer's name.

    Its methods raise ``LeaseLostError`` if another reader has taken over, and
    ``HistoryLostError`` if the checkpoint was dropped; nothing was saved then.
    """

    def __init__(self, claim: Claim, checkpoint: Document) -> None:
        self._claim = claim
        self._mine = {name: checkpoint[name] for name in ("_id", "epoch", "owner")}
        self._saves: int | None = checkpoint["saves"]
        self._serial = 0
        """The latest save's number: the server ignores an earlier save that is late."""
        self.is_lost = False
        """Whether it was released, or is known to be held by another reader."""
        stored = checkpoint["position"]
        self.position: Position | None = stored and checkpoints.decode_position(stored)
        """The last saved position; None if there is none."""
        self.log: object = checkpoint["log"]
        """The identity of the events collection that the position belongs to."""
        keeping = _keep_renewing(claim, checkpoint["epoch"], weakref.ref(self))
        self._renewal = asyncio.create_task(keeping)

    @classmethod
    async def acquire(
        cls, connection: Connection, name: str, app_name: str | None
    ) -> Lease:
        """Wait for the lease, and acquire it.

        Raises:
            ConfigurationError: the name is in use for another app's changes.
        """
        owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        claim = Claim(connection, name, owner)
        checkpoint = None
        try:
            while checkpoint is None:
                floor = await _highest_epoch(connection, name, app_name)
                # Another process sends no signal.
                while (epoch := await connection.retry(claim.take, floor)) is None:  # noqa: ASYNC110
                    await asyncio.sleep(_RETRY)
                checkpoint = await claim.enter(epoch)
            return cls(claim, checkpoint)
        except BaseException:
            await uninterrupted(claim.give_up())
            raise

    def check(self) -> None:
        """Raise if it is known to be lost."""
        if self.is_lost:
            name = errors.quoted(self._claim.name)
            message = (
                f"Another reader has taken over consumer {name},"
                f" since this one did not renew its lease for {LEASE:.0f} seconds."
                " It receives the changes that were not committed here."
            )
            raise errors.LeaseLostError(message)

    async def save(self, position: Position, log: object) -> None:
        """Save a position, with a majority, unless a later one was; idempotent."""
        self.check()
        self._saves = None  # until the outcome is known
        not_later, change = self._next_save(position, log)
        connection = self._claim.connection
        saved: Document | None = await connection.retry(
            connection.plain(self._stored).find_one_and_update,
            not_later,
            change,
            projection={"saves": 1},
            return_document=True,
        )
        if saved is None:
            saved = await connection.retry(self._load)  # a later position was saved
        self._saves = saved["saves"]

    async def saving(self, reached: Callable[[], Position], log: object) -> Work:
        """The work of saving a position at the end of a transaction, exactly once.

        Saves are counted, and :meth:`note_saved` counts this one. If a transaction is
        retried after an unknown outcome although it was committed, the count does not
        match, and the caller aborts it.
        """
        self.check()
        if self._saves is None:
            stored = await self._claim.connection.retry(self._load)
            self._saves = stored["saves"]
        saves = self._saves

        async def work(txn: Txn) -> None:
            not_later, change = self._next_save(reached(), log)
            last = {**not_later, "saves": saves}
            saved = await self._stored.update_one(last, change, session=txn)
            if not saved.matched_count:
                await self._load(txn)
                self._lose()  # to itself: the transaction was committed before

        return work

    def note_saved(self) -> None:
        """Count the save of a transaction that was committed."""
        if self._saves is not None:
            self._saves += 1

    @property
    def _stored(self) -> Any:
        return self._claim.connection.checkpoints

    def _next_save(
        self, position: Position, log: object
    ) -> tuple[Document, list[Document]]:
        self._serial += 1
        saved = {
            "position": {"$literal": checkpoints.encode_position(position)},
            "log": {"$literal": log},
            "saves": {"$add": ["$saves", 1]},
            "saved_at": "$$NOW",
            "serial": self._serial,
        }
        found = {**self._mine, "serial": {"$not": {"$gt": self._serial}}}
        return found, [{"$set": saved}]

    async def _load(self, txn: Txn = None) -> Document:
        """The checkpoint, of which this reader is the current one."""
        found = await self._stored.find_one({"_id": self._claim.name}, session=txn)
        if found is None:
            who = f"The checkpoint of consumer {errors.quoted(self._claim.name)}"
            raise errors.HistoryLostError(
                f"{who} was dropped: its position is unknown."
            )
        if not self._mine.items() <= found.items():
            self._lose()
        stored: Document = found
        return stored

    async def restore(self, app_name: str | None) -> None:
        """Store a checkpoint for this reader again, unless there is one."""
        holder = {name: self._mine[name] for name in ("epoch", "owner")}
        at, name = self._claim.connection, self._claim.name
        await add_checkpoint(at, name, app_name, None, None, **holder)

    def _lose(self) -> None:
        self.is_lost = True
        self.check()

    async def release(self) -> None:
        """Release it, so that the next reader has it at once."""
        self._renewal.cancel()
        self.is_lost = True
        await self._claim.give_up()


async def _keep_renewing(claim: Claim, epoch: int, lease: weakref.ref[Lease]) -> None:
    """Renew until the lease is lost or released; give it up if it was collected."""
    while (held := lease()) is not None and not held.is_lost:
        del held
        with suppress(errors.MongoSessionServiceError):
            async with claim.connection.call():
                is_held = await claim.renew(epoch)
            if not is_held and (held := lease()) is not None:
                held.is_lost = True
                del held
        await asyncio.sleep(RENEWAL)
    if held is None:
        await claim.give_up()


async def add_checkpoint(
    connection: Connection,
    name: str,
    app_name: str | None,
    log: object,
    position: Position | None,
    **holder: object,
) -> Document:
    """The name's checkpoint, stored first if there is none."""
    new = {
        "app_name": app_name,
        "epoch": 0,
        "saves": 0,
        "log": log,
        "position": position and checkpoints.encode_position(position),
        **holder,
    }
    stored: Document = await connection.retry(
        connection.plain(connection.checkpoints).find_one_and_update,
        {"_id": name},
        {"$setOnInsert": new},
        upsert=True,
        return_document=True,
    )
    return stored


async def _highest_epoch(
    connection: Connection, name: str, app_name: str | None
) -> int:
    """The epoch of the name's latest reader, 0 if there was none."""
    stored = await add_checkpoint(connection, name, app_name, None, None)
    if stored["app_name"] != app_name:
        what = stored["app_name"]
        message = (
            f"Consumer {errors.quoted(name)} was started with app_name={what!r}, not"
            f" {app_name!r}, and its checkpoint covers only that. Choose another name."
        )
        raise errors.ConfigurationError(message)
    epoch: int = stored["epoch"]
    return epoch


def _expiry() -> Document:
    """The expiry of a lease that is renewed now."""
    return {"expires_at": {"$add": ["$$NOW", int(LEASE * 1000)]}}
