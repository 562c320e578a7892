"""Checkpoint: the position after which a consumer resumes, as one reader saves it.

The lease has a document of its own, so that its renewals do not conflict with a
handler's transaction, which ends with the checkpoint. The reader that acquires it
enters the lease's epoch into the checkpoint, unless that has a higher one, and expects
it in every save. So whoever was replaced saves nothing, and a claimant that stalls
between the two steps deposes nobody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from bson.timestamp import Timestamp
from pymongo.errors import OperationFailure, PyMongoError

from mongo_session_service.consumers.handler import run_interruptible_transaction
from mongo_session_service.errors import (
    ConfigurationError,
    HistoryLostError,
    LeaseLostError,
    quoted,
)
from mongo_session_service.model.records import Document
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.lease import Lease
from mongo_session_service.storage.transactions import ClientSessions, Txn
from mongo_session_service.storage.translation import WRITE_CONFLICT

_IS_LOCKED_OUT: Final = "holder.is_locked_out"
"""The field of a lease that says: what a dead process has locked keeps its holder."""


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the log and its changes, to resume after.

    A replay reads the log in the order of its ``_id``, as it was at one time of the
    deployment's clock, while the log grows anywhere. The changes since follow. If
    MongoDB forgets that time meanwhile, the changes since it come first, as far as they
    are of the replayed part of the log; then the rest is read as it is by then.
    """

    start: Timestamp | Document
    """Where the change stream resumes: a time, or the resume token of an empty reply.

    The token of a change holds its ``_id`` in clear, and no IDs are stored here.
    """
    reached: Timestamp
    """When the latest delivered change was committed; at which a replay reads."""
    is_replaying: bool = False
    replayed: Document | None = None
    """The ``_id`` of the latest event that was replayed."""
    passed: str | None = None
    """The mark of the last change of that time that was delivered; None if none."""

    @classmethod
    def at_end(cls, now: Timestamp) -> Position:
        """Make the position after all that has happened so far."""
        return cls(start=_next_time(now), reached=now)

    @classmethod
    def at_beginning(cls, now: Timestamp) -> Position:
        """Make the position before the log as it is now, and all that follows."""
        return replace(cls.at_end(now), is_replaying=True)

    @property
    def can_replay(self) -> bool:
        """Whether the log follows, as of ``reached``, and not changes since."""
        return self.is_replaying and self.start == _next_time(self.reached)

    def after_replayed(self, id_: Document) -> Position:
        """Make the position after one more event of a replay."""
        return replace(self, replayed=id_)

    def after_changes(self, until: Timestamp) -> Position:
        """Make the position of a replay after all changes until a time."""
        return replace(self, start=_next_time(until), reached=until, passed=None)

    def after_replay(self) -> Position:
        """Make the position after the replay, before the changes since its time."""
        return replace(self, is_replaying=False, replayed=None)

    def after_change(self, mark: str, cluster_time: Timestamp) -> Position:
        """Make the position after one more change of the stream."""
        return replace(self, start=cluster_time, reached=cluster_time, passed=mark)

    def after_silence(self, token: Document) -> Position:
        """Make the position after what the stream has skipped."""
        return replace(self, start=token, passed=None)

    def advanced_to(self, now: Timestamp) -> Position:
        """Make this position, known to be current at a time."""
        return replace(self, reached=max(self.reached, now))

    def follows_replayed(self, id_: Document) -> bool:
        """Whether a replay has not come to an event yet."""
        if not self.is_replaying:
            return False
        return self.replayed is None or _order(id_) > _order(self.replayed)


def _next_time(time: Timestamp) -> Timestamp:
    """Return a start of the change stream after a time: it begins with its start."""
    return Timestamp(time.time, time.inc + 1)


def _order(id_: Mapping[str, Any]) -> tuple[bytes, bytes, bytes, int]:
    """Make a sort key like MongoDB's, which compares strings by their bytes."""
    return (
        id_["app_name"].encode(),
        id_["user_id"].encode(),
        id_["session_id"].encode(),
        id_["revision"],
    )


def encode_position(position: Position) -> Document:
    start = position.start
    is_time = isinstance(start, Timestamp)
    return {
        "start_at": start if is_time else None,
        "token": None if is_time else start,
        "passed": position.passed,
        "at": position.reached,
        "is_replaying": position.is_replaying,
        "replayed": position.replayed,
    }


def decode_position(document: Document) -> Position:
    return Position(
        start=document["start_at"] or document["token"],
        reached=document["at"],
        is_replaying=document["is_replaying"],
        replayed=document["replayed"],
        passed=document["passed"],
    )


SavedWork = Callable[[Txn], Awaitable[Position | None]]
"""Work that may return how far it has come, to be saved with it."""


class Checkpoint:
    """The checkpoint of a consumer's name, as one reader claims and saves it."""

    def __init__(self, connection: Connection, name: str, app_name: str | None) -> None:
        """Claim nothing yet."""
        self.connection = connection
        self.lease = Lease(connection, connection.leases.name, name)
        self._client_sessions = ClientSessions(connection, 1)
        self._replaces_dead = False
        """Whether its predecessor has died, and nothing was saved with work since."""
        self.position: Position | None = None
        """The position that was stored when it was claimed; None if there was none."""
        self.log: Any = None
        """The identity of the events collection that the position belongs to."""
        self._name = name
        self._app_name = app_name
        self._epoch = 0
        self._serial = 0
        """The latest save's number: the server ignores an earlier save that is late."""
        self._saved_serial: int | None = 0
        """The stored number; None until the outcome of a save is known."""
        self._is_released = False

    async def claim(self) -> bool:
        """Acquire the lease if it is free, and enter its epoch into the checkpoint."""
        connection = self.connection
        stored = await store_checkpoint(connection, self._name, self._app_name)
        if (begun := stored["app_name"]) != self._app_name:
            read = "all apps" if begun is None else f"app {quoted(begun)}"
            raise ConfigurationError(
                f"Consumer {quoted(self._name)} was started for {read}, and its"
                " checkpoint covers only that. Run it for that, or choose another name."
            )
        # The lease may be new, or may have been dropped.
        floor = {"$max": {"epoch": stored["epoch"]}}
        await connection.leases.update_one({"_id": self._name}, floor, upsert=True)
        self.lease.client_sessions = await self._client_sessions.ids()
        await self.lease.end_dead_holder()
        if await self.lease.acquire(patient=True) is None:
            return False
        self._replaces_dead |= self.lease.replaces_dead
        epoch = self.lease.epoch
        entered = await connection.with_default_codec(
            connection.checkpoints
        ).find_one_and_update(
            {"_id": self._name, "epoch": {"$lt": epoch}},
            {"$set": {"epoch": epoch, "owner": self.lease.token, "serial": 0}},
            return_document=True,
        )
        if entered is None:  # it has stalled meanwhile, and another reader came first
            return False
        self._epoch, self._serial, self._saved_serial = epoch, 0, 0
        self.position = entered["position"] and decode_position(entered["position"])
        self.log = entered["log"]
        return True

    async def claim_again(self) -> None:
        """Claim what may have been dropped; it is lost if another reader came first."""
        if not await self.connection.retry(self.claim):
            self._lose_lease()

    async def release_lease(self) -> None:
        """Release the lease, so that the next reader has it at once."""
        self._is_released = True
        with suppress(PyMongoError, TimeoutError):  # it expires by itself
            await self.lease.release_lease()
            await self._client_sessions.end_all()

    async def delete_name(self) -> None:
        """Remove it with its dead letters and its lease."""
        connection, name = self.connection, self._name
        await connection.dead_letters.delete_many({"_id.consumer": name})
        await connection.checkpoints.delete_one(self._own_filter)
        await connection.leases.delete_one(
            {"_id": name, "holder.token": self.lease.token}
        )

    def check_lease(self) -> None:
        """Refuse to go on if the lease is known to be lost, or was released."""
        if self.lease.is_lost or self._is_released:
            seconds = self.connection.limits.lease_seconds
            raise LeaseLostError(
                f"Another reader has taken over consumer {quoted(self._name)}, since"
                f" this one did not renew its lease for {seconds:g} seconds. It"
                " receives the changes that were not committed here."
            )

    async def save(self, position: Position) -> None:
        """Save a position, unless a later save, or another reader, came first."""
        self.check_lease()
        self._serial += 1
        serial, self._saved_serial = self._serial, None
        retry = self.connection.retry
        is_earlier = {"$not": {"$gt": serial}}
        stored = await retry(self._store, position, serial, is_earlier)
        if stored is None:  # a later save came first
            stored = await retry(self._load_mine)
        self._saved_serial = max(stored["serial"], self._saved_serial or 0)

    async def save_with(self, work: SavedWork, position: Position) -> Position:
        """Do work, and save the position that it returns or else this one; once.

        They are one transaction, which expects the number that was saved before. So if
        it is repeated although it was committed, its outcome unknown, it is aborted.
        """
        self.check_lease()
        if self._saved_serial is None:
            stored = await self.connection.retry(self._load_mine)
            self._saved_serial = stored["serial"]
        self._serial += 1
        expected, serial = self._saved_serial, self._serial

        async def save(txn: Txn, reached: Position | None) -> None:
            if await self._store(reached or position, serial, expected, txn) is None:
                await self._load_mine(txn)
                self._lose_lease()  # to itself: the transaction was committed before

        async def attempt(txn: Txn) -> Position | None:
            try:
                return await work(txn)
            except OperationFailure as error:
                if self._replaces_dead and error.code == WRITE_CONFLICT:
                    await self._note_lock({"$set": {_IS_LOCKED_OUT: True}})
                raise

        async with self._client_sessions.borrow() as session:
            reached = await run_interruptible_transaction(
                self.connection, attempt, save, session
            )
        if self._replaces_dead:
            self._replaces_dead = False
            await self._note_lock({"$unset": {_IS_LOCKED_OUT: ""}})
        self._saved_serial = serial
        return reached or position

    async def _note_lock(self, change: Document) -> None:
        """Note whether a dead process has locked what the work writes to."""
        mine = {"_id": self._name, "holder.token": self.lease.token}
        with suppress(PyMongoError):
            await self.connection.leases.update_one(mine, change)

    async def _store(
        self, position: Position, serial: int, expected: object, txn: Txn = None
    ) -> Document | None:
        """Store a position if the stored number is as expected; None if it is not."""
        stored = self.connection.with_default_codec(self.connection.checkpoints)
        saved = {
            "position": encode_position(position),
            "log": self.log,
            "serial": serial,
        }
        found: Document | None = await stored.find_one_and_update(
            {**self._own_filter, "serial": expected},
            {"$set": saved, "$currentDate": {"saved_at": True}},
            return_document=True,
            session=txn,
        )
        return found

    async def _load_mine(self, txn: Txn = None) -> Document:
        """Load the checkpoint, if this reader is its latest."""
        stored = self.connection.checkpoints
        found: Document | None = await stored.find_one({"_id": self._name}, session=txn)
        if found is None:
            raise HistoryLostError(
                f"The checkpoint of consumer {quoted(self._name)} was dropped: its"
                " position is unknown."
            )
        if not self._own_filter.items() <= found.items():
            self._lose_lease()
        return found

    def _lose_lease(self) -> None:
        self.lease.is_lost = True
        self.check_lease()

    @property
    def _own_filter(self) -> Document:
        """Return the checkpoint's filter while this reader is the latest."""
        return {"_id": self._name, "epoch": self._epoch, "owner": self.lease.token}


async def store_checkpoint(
    connection: Connection,
    name: str,
    app_name: str | None,
    log: object = None,
    position: Position | None = None,
) -> Document:
    """Load the name's checkpoint; store one first if there is none."""
    new = {
        "app_name": app_name,
        "epoch": 0,
        "log": log,
        "position": position and encode_position(position),
    }
    checkpoints = connection.with_default_codec(connection.checkpoints)
    stored: Document = await checkpoints.find_one_and_update(
        {"_id": name}, {"$setOnInsert": new}, upsert=True, return_document=True
    )
    return stored
