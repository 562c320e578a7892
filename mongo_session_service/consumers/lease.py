"""Consumer lease: one active reader per name, fenced by a rising epoch.

The lease has its own document, so that its renewals do not conflict with a handler's
transaction, which ends with the checkpoint. Each holder raises the checkpoint's epoch
and includes it in the filter of every save: a replaced holder matches nothing and saves
nothing. All times are the server's; clocks need not be synchronised.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from bson.codec_options import CodecOptions
from pymongo.errors import NetworkTimeout, PyMongoError

from mongo_session_service.consumers import checkpoint as checkpoints
from mongo_session_service.consumers.checkpoint import Position
from mongo_session_service.consumers.handler import Work
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import persistently
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.errors import ConfigurationError, LeaseLostError, quoted
from mongo_session_service.model.records import Document

LEASE: Final = 5.0
"""Seconds without a renewal after which another reader can take over."""

RENEWAL: Final = 1.0  # seconds
_RETRY: Final = 0.5  # seconds

_IS_FREE: Final[Document] = {
    "$or": [{"owner": None}, {"$expr": {"$lt": ["$expires_at", "$$NOW"]}}]
}


@dataclass(frozen=True, slots=True)
class _Claim:
    """One reader's claim in the lease document of a name."""

    connection: Connection
    name: str
    owner: str

    async def renew(self) -> bool:
        """Renew the lease; False if another reader holds it."""
        renewed = await self.connection.leases.update_one(
            {"_id": self.name, "owner": self.owner}, [{"$set": _expiry()}]
        )
        return bool(renewed.matched_count)

    async def take(self) -> bool:
        """Take the lease if it is free; a cancellation waits for the outcome."""
        taking = _plain(self.connection.leases).find_one_and_update(
            {"_id": self.name, **_IS_FREE},
            [{"$set": {"owner": self.owner, **_expiry()}}],
        )
        try:
            return await uninterrupted(asyncio.wait_for(taking, LEASE)) is not None
        except TimeoutError:
            raise NetworkTimeout(f"no answer within {LEASE:g} seconds") from None

    async def give_up(self) -> None:
        """Release the lease; if that takes long, it expires by itself."""
        with suppress(PyMongoError, TimeoutError):
            async with asyncio.timeout(LEASE):
                await self.connection.leases.update_one(
                    {"_id": self.name, "owner": self.owner}, {"$set": {"owner": None}}
                )


class Lease:
    """The exclusive right to read and to save under a consumer's name.

    Its methods raise ``LeaseLostError`` if another reader has taken over; nothing was
    saved then.
    """

    def __init__(self, claim: _Claim, checkpoint: Document) -> None:
        self._claim = claim
        self._mine = {"_id": claim.name, "epoch": checkpoint["epoch"]}
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
        keeping = _keep_renewing(claim, weakref.ref(self))
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
        await _add(connection.leases, name, {"owner": None, "expires_at": None})
        await add_checkpoint(connection, name, app_name, None, None)
        await _check_app(connection, name, app_name)
        claim = _Claim(connection, name, owner)
        try:
            # Another process sends no signal.
            while not await persistently(claim.take):  # noqa: ASYNC110
                await asyncio.sleep(_RETRY)
            checkpoint: Document = await persistently(
                lambda: _plain(connection.checkpoints).find_one_and_update(
                    {"_id": name},
                    {"$inc": {"epoch": 1}, "$set": {"serial": 0}},
                    return_document=True,
                )
            )
            return cls(claim, checkpoint)
        except BaseException:
            await uninterrupted(claim.give_up())
            raise

    def check(self) -> None:
        """Raise if it is known to be lost."""
        if self.is_lost:
            message = (
                f"Another reader has taken over consumer {quoted(self._claim.name)},"
                f" since this one did not renew its lease for {LEASE:.0f} seconds."
                " Changes that were not committed here are delivered there."
            )
            raise LeaseLostError(message)

    async def save(self, position: Position, log: object) -> None:
        """Save a position, with a majority, unless a later one was; idempotent."""
        self.check()
        self._saves = None  # until the outcome is known
        not_later, change = self._next_save(position, log)
        saved: Document | None = await persistently(
            lambda: _plain(self._stored).find_one_and_update(
                not_later, change, projection={"saves": 1}, return_document=True
            )
        )
        if saved is not None:
            self._saves = saved["saves"]
        else:
            mine = await persistently(lambda: self._stored.find_one(self._mine))
            self._note(is_held=mine is not None)

    async def saving(self, position: Position, log: object) -> Work:
        """The work of saving a position at the end of a transaction, exactly once.

        Saves are counted. If a transaction is retried after an unknown outcome although
        it was committed, the count does not match, and the caller aborts it.
        """
        self.check()
        if self._saves is None:
            found = await persistently(lambda: self._stored.find_one(self._mine))
            self._note(is_held=found is not None)
            self._saves = found["saves"]
        not_later, change = self._next_save(position, log)
        last = {**not_later, "saves": self._saves}

        async def work(txn: Txn) -> None:
            saved = await self._stored.update_one(last, change, session=txn)
            self._note(is_held=bool(saved.matched_count))

        self._saves = None
        return work

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

    def _note(self, *, is_held: bool) -> None:
        self.is_lost = self.is_lost or not is_held
        self.check()

    async def release(self) -> None:
        """Release it, so that the next reader has it at once."""
        self._renewal.cancel()
        self.is_lost = True
        await self._claim.give_up()


async def _keep_renewing(claim: _Claim, lease: weakref.ref[Lease]) -> None:
    """Renew until the lease is lost or released; give it up if it was collected."""
    while (held := lease()) is not None and not held.is_lost:
        del held
        with suppress(PyMongoError):
            is_held = await claim.renew()
            if not is_held and (held := lease()) is not None:
                held.is_lost = True
                del held
        await asyncio.sleep(RENEWAL)
    if held is None:
        await claim.give_up()


def _plain(collection: Any) -> Any:
    """A collection read without this package's decoders.

    With them the driver does not raise for a ``writeConcernError`` in the reply of a
    ``findAndModify``, which occurs when a primary steps down.
    """
    return collection.with_options(codec_options=CodecOptions())


async def add_checkpoint(
    connection: Connection,
    name: str,
    app_name: str | None,
    log: object,
    position: Position | None,
) -> None:
    """Store a new name's checkpoint, unless it has one."""
    new = {
        "app_name": app_name,
        "epoch": 0,
        "saves": 0,
        "log": log,
        "position": position and checkpoints.encode_position(position),
    }
    await _add(connection.checkpoints, name, new)


async def _add(collection: Any, name: str, fields: Document) -> None:
    """Store a consumer's document, unless it is stored already."""
    await persistently(
        lambda: collection.update_one(
            {"_id": name}, {"$setOnInsert": fields}, upsert=True
        )
    )


async def _check_app(connection: Connection, name: str, app_name: str | None) -> None:
    stored = await persistently(
        lambda: connection.checkpoints.find_one({"_id": name}, {"app_name": 1})
    )
    if stored is not None and stored["app_name"] != app_name:
        what = stored["app_name"]
        message = (
            f"Consumer {quoted(name)} was started with app_name={what!r}, not"
            f" {app_name!r}, and its checkpoint covers only that. Choose another name."
        )
        raise ConfigurationError(message)


def _expiry() -> Document:
    """The expiry of a lease that is renewed now."""
    return {"expires_at": {"$add": ["$$NOW", int(LEASE * 1000)]}}
