"""Checkpoint: the place after which a consumer resumes, as one reader saves it.

The lease has a document of its own, so that its renewals do not conflict with a
handler's transaction, which ends with the checkpoint. The reader that acquires it
enters the lease's epoch into the checkpoint, unless that has a higher one, and expects
it in every save. So whoever was replaced saves nothing, and a claimant that stalls
between the two steps deposes nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from bson.timestamp import Timestamp

from mongo_session_service._public import public
from mongo_session_service.consumers.handler import run_interruptibly
from mongo_session_service.errors import (
    ConfigurationError,
    HistoryLostError,
    LeaseLostError,
    MongoSessionServiceError,
    quoted,
)
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.sessions.deletion import ERASING_SERIAL
from mongo_session_service.storage.failures import PAUSE_AFTER_LOSS, is_write_conflict
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.lease import Lease, renewed_at_condition
from mongo_session_service.storage.statements import Delete, Query, Update
from mongo_session_service.storage.transactions import ClientSessions, Transaction

logger = logging.getLogger(__name__)

OnHistoryLost = Literal["raise", "replay", "skip"]
Start = Literal["beginning", "now"]

_IS_LOCKED_OUT: Final = "holder.is_locked_out"
"""A lease has this field while a lock of a dead process stops its holder."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The changes that a consumer reads, and where it starts."""

    name: str
    app_name: str | None
    start: Start = "beginning"
    on_history_lost: OnHistoryLost = "raise"
    updates: bool = False
    """Whether it receives ``updated`` changes as well."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """A place in the log and its changes, to resume after.

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
    def at_end(cls, now: Timestamp) -> LogPlace:
        return cls(start=_next_time(now), reached=now)

    @classmethod
    def at_beginning(cls, now: Timestamp) -> LogPlace:
        """Make the place before the log as it is now, and all that follows."""
        return replace(cls.at_end(now), is_replaying=True)

    @property
    def can_replay(self) -> bool:
        """Whether the log follows, as of ``reached``, and not changes since."""
        return self.is_replaying and self.start == _next_time(self.reached)

    def after_changes(self, until: Timestamp) -> LogPlace:
        """Make the place of a replay after all changes until a time."""
        return replace(self, start=_next_time(until), reached=until, passed=None)

    def after_change(self, mark: str, cluster_time: Timestamp) -> LogPlace:
        return replace(self, start=cluster_time, reached=cluster_time, passed=mark)

    def advanced_to(self, now: Timestamp) -> LogPlace:
        """Make this place, known to be current at a time."""
        return replace(self, reached=max(self.reached, now))

    def follows_replayed(self, id_: Document) -> bool:
        if not self.is_replaying:
            return False
        return self.replayed is None or _sort_key(id_) > _sort_key(self.replayed)


def _next_time(time: Timestamp) -> Timestamp:
    """Return a start of the change stream after a time: it begins with its start."""
    return Timestamp(time.time, time.inc + 1)


def _sort_key(id_: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sort as MongoDB does, which compares strings by their bytes."""
    return (*(id_[name].encode() for name in SessionKey._fields), id_["revision"])


SavedWork = Callable[[Transaction], Coroutine[Any, Any, LogPlace | None]]
"""Work in a transaction; it may return the place to save in the same one."""


class PlaceMovedError(HistoryLostError):
    """An erasure has set the place: what follows it is to be read again."""


class Checkpoint:
    """The checkpoint of a consumer's name, as one reader claims and saves it."""

    def __init__(self, storage: Storage, settings: ConsumerSettings) -> None:
        self.storage = storage
        self.lease = Lease(storage, "leases", settings.name)
        self.place: LogPlace
        """The place that is stored, once it was resumed."""
        self._is_new = True
        """Whether no place was stored before it was claimed."""
        self.saved_at = time.monotonic()
        """When it was last saved, on this machine's monotonic clock."""
        self._settings = settings
        self._name = settings.name
        self._client_sessions = ClientSessions(storage, 1)
        self._replaces_dead = False
        """Whether its predecessor has died, and nothing was saved with work since."""
        self._log: Any = None
        """The identity of the events collection that the place belongs to."""
        self._epoch = 0
        self._serial = 0
        """The latest save's number: the server ignores an earlier save that is late."""

    async def claim(self) -> bool:
        """Acquire the lease if it is free, and enter its epoch into the checkpoint."""
        storage, name = self.storage, self._name
        stored = await _load_or_store(storage, self._settings)
        if (begun := stored["app_name"]) != self._settings.app_name:
            read = "all apps" if begun is None else f"app {quoted(begun)}"
            raise ConfigurationError(
                f"Consumer {quoted(name)} was started for {read}, and its checkpoint"
                " covers only that. Run it for that, or choose another name."
            )
        # The lease may be new, or may have been dropped.
        floor = {"$max": {"epoch": stored["epoch"]}}
        lease = Update("leases", {"_id": name}, floor, upsert=True)
        await storage.find_and_update(lease)
        self.lease.client_sessions = await self._client_sessions.ids()
        await self.lease.end_dead_holder()
        if await self.lease.acquire(patient=True) is None:
            return False
        self._replaces_dead |= self.lease.replaces_dead
        epoch = self.lease.epoch
        mine = {"epoch": epoch, "owner": self.lease.token, "serial": 0}
        earlier = {"_id": name, "epoch": {"$lt": epoch}}
        entering = Update("checkpoints", earlier, {"$set": mine})
        entered = await storage.find_and_update(entering)
        if entered is None:  # it has stalled meanwhile, and another reader came first
            return False
        # And how often readers that have died had begun the change after the place.
        self._epoch, self._serial, self._begun = epoch, 0, entered.get("begun", 0)
        self._is_new = entered["position"] is None
        if not self._is_new:
            self.place = LogPlace(**entered["position"])
        self._log = entered["log"]
        return True

    async def resume(self) -> None:
        """Start where the settings want it, unless there is a place of this log."""
        before, self._log = self._log, await load_log_id(self.storage)
        if self._is_new:
            await self._start(self._settings.start)
        elif before not in (None, self._log):
            message = (
                "The events collection is not the one the checkpoint was saved for: it"
                " was dropped, or restored from a backup."
            )
            await self.recover(HistoryLostError(message))

    async def recover(self, error: HistoryLostError) -> None:
        """Raise, or start at the beginning or now, as ``on_history_lost`` wants it.

        If an erasure has only moved the place, it is where to start.
        """
        if isinstance(error, PlaceMovedError):
            return
        option = self._settings.on_history_lost
        if option == "raise":
            raise error
        logger.warning("%s on_history_lost: %s.", error, option)
        await asyncio.sleep(PAUSE_AFTER_LOSS)
        # The lease and the checkpoint may have been dropped with the log.
        if not await self.claim():
            self._lose_lease()
        # It may be another one by now, or none until the next append creates it.
        self._log = await load_log_id(self.storage)
        await self._start("now" if option == "skip" else "beginning")

    async def _start(self, start: Start) -> None:
        now = await self.storage.latest_time(patient=True)
        begin = LogPlace.at_end if start == "now" else LogPlace.at_beginning
        await self.save(begin(now))

    async def move_to(self, place: LogPlace) -> None:
        """Set the place in the present log after which the next reader resumes."""
        self._log = await load_log_id(self.storage)
        await self.save(place)

    async def release(self) -> None:
        """Release the lease, so that the next reader has it at once."""
        self.lease.is_lost = True
        with suppress(MongoSessionServiceError, TimeoutError):  # it expires by itself
            await self.lease.release()
            await self._client_sessions.end_all()

    async def delete_name(self) -> None:
        """Remove it with its dead letters and its lease."""
        name = self._name
        await self.storage.commit(
            Delete("dead_letters", {"_id.consumer": name}, many=True),
            Delete("checkpoints", self._own_filter),
            Delete("leases", {"_id": name, "holder.token": self.lease.token}),
        )

    def check_lease(self) -> None:
        """Refuse to go on if the lease was released, or is known to be lost."""
        if self.lease.is_lost:
            seconds = self.storage.limits.lease_seconds
            raise LeaseLostError(
                f"Another reader has taken over consumer {quoted(self._name)}, since"
                f" this one did not renew its lease for {seconds:g} seconds. It"
                " receives the changes that were not committed here."
            )

    async def save(self, place: LogPlace, work: SavedWork | None = None) -> LogPlace:
        """Save a place, with work in one transaction; return what was saved.

        That is another place if the work returns one. Nothing is saved, nor done, if
        another reader came first.
        """
        self.check_lease()
        if work is not None:
            place = await self._save_with_work(work, place)
        else:
            serial = self._serial = self._serial + 1
            saving = self._save_statement(place, serial, "$lte")
            # None: a later one was saved, or it was lost
            if await self.storage.find_and_update(saving) is None:
                await self._check_own(self.storage, serial)
        self.place, self.saved_at, self._begun = place, time.monotonic(), 0
        return place

    async def note_beginning(self) -> int:
        """Note that the change after the place is begun; return how often it was."""
        self._begun += 1
        note = Update("checkpoints", self._own_filter, {"$set": {"begun": self._begun}})
        await self.storage.find_and_update(note)
        return int(self._begun)

    async def _save_with_work(self, work: SavedWork, place: LogPlace) -> LogPlace:
        """Save a place with work, once.

        Until they are known to be committed, what follows has the same number. So if
        they were, their outcome unknown, it is aborted, as is a repetition.
        """
        serial = self._serial + 1

        async def save(tx: Transaction, reached: LogPlace | None) -> None:
            saving = self._save_statement(reached or place, serial, "$lt")
            if await tx.write(saving) != [1]:
                await self._check_own(tx, serial)
                self._lose_lease()  # to itself: the transaction was committed before

        reached = await run_interruptibly(
            self.storage, work, save, self._client_sessions
        )
        if self._replaces_dead:
            self._replaces_dead = False
            await self._update_own_lease({"$unset": {_IS_LOCKED_OUT: ""}})
        self._serial = max(self._serial, serial)
        return reached or place

    def _save_statement(self, place: LogPlace, serial: int, than: str) -> Update:
        """Return the statement that saves if the stored number is before this one."""
        saved = {"position": asdict(place), "log": self._log, "serial": serial}
        change = {"$set": saved | {"begun": 0}, "$currentDate": {"saved_at": True}}
        earlier = {**self._own_filter, "serial": {than: serial}}
        return Update("checkpoints", earlier, change)

    async def flag_locked_out(self, error: Exception) -> None:
        """Record in the lease that a dead process locks what the work writes to."""
        if self._replaces_dead and is_write_conflict(error):
            await self._update_own_lease({"$set": {_IS_LOCKED_OUT: True}})

    async def _update_own_lease(self, change: Document) -> None:
        mine = {"_id": self._name, "holder.token": self.lease.token}
        with suppress(MongoSessionServiceError):
            await self.storage.commit(Update("leases", mine, change))

    async def _check_own(self, reader: Storage | Transaction, serial: int) -> None:
        """Refuse to go on if another reader, or an erasure, has changed it since.

        After an erasure the stored place is the one to go on from.
        """
        found = await reader.find_one(Query("checkpoints", {"_id": self._name}))
        if found is None:
            raise HistoryLostError(
                f"The checkpoint of consumer {quoted(self._name)} was dropped: its"
                " place is unknown."
            )
        if not self._own_filter.items() <= found.items():
            self._lose_lease()
        if found["serial"] >= serial + ERASING_SERIAL // 2:
            self._serial, self._begun = found["serial"], 0
            self.place = LogPlace(**found["position"])
            raise PlaceMovedError

    def _lose_lease(self) -> None:
        self.lease.is_lost = True
        self.check_lease()

    @property
    def _own_filter(self) -> Document:
        """The checkpoint's filter while this reader is the latest."""
        return {"_id": self._name, "epoch": self._epoch, "owner": self.lease.token}


async def start_at_present(storage: Storage, settings: ConsumerSettings) -> None:
    """Start a new name at the current time, whichever process reads it later."""
    storage.check_watchable()
    log = await load_log_id(storage)
    now = await storage.latest_time(patient=True)
    await _load_or_store(storage, settings, log, LogPlace.at_end(now))


async def _load_or_store(
    storage: Storage,
    settings: ConsumerSettings,
    log: object = None,
    place: LogPlace | None = None,
) -> Document:
    """Load the name's checkpoint; store one first if there is none."""
    new = {
        "app_name": settings.app_name,
        "epoch": 0,
        "log": log,
        "position": place and asdict(place),
    }
    named, change = {"_id": settings.name}, {"$setOnInsert": new}
    stored = await storage.find_and_update(
        Update("checkpoints", named, change, upsert=True)
    )
    return stored or {**named, **new}


async def load_log_id(storage: Storage) -> Any:
    """Return the UUID of the events collection; one created anew has another."""
    name = f"{storage.prefix}events"
    command = {"listCollections": 1, "filter": {"name": name}}
    reply = await storage.command(command, patient=True)
    found = reply["cursor"]["firstBatch"]
    return found[0]["info"]["uuid"] if found else None


@public
@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A consumer's status, according to its checkpoint, lease and dead letters."""

    name: str
    app_name: str | None
    """The app whose changes it receives; None for all."""
    is_active: bool
    """Whether a reader holds its lease."""
    owner: str | None
    """That reader: host, process ID and a random part."""
    epoch: int
    """How many readers it has had."""
    is_replaying: bool
    """Whether it is still reading the log from the beginning."""
    lag_seconds: float | None
    """How far its checkpoint is behind MongoDB; None without a checkpoint. An idle
    consumer saves every 15 seconds."""
    checkpoint_age_seconds: float | None
    """Seconds since that was saved; None without a checkpoint."""
    dead_letters: int
    is_locked_out: bool = False
    """Whether a transactional handler waits for a lock of a dead process, which MongoDB
    ends 60 to 90 seconds after that."""


async def load_statuses(storage: Storage) -> list[ConsumerStatus]:
    now = await storage.latest_time()
    age = {"$set": {"age": {"$subtract": ["$$NOW", "$saved_at"]}}}
    held = {"holder": {"$ne": None}, "$expr": renewed_at_condition(storage, "$lte")}
    count = {"$group": {"_id": "$_id.consumer", "count": {"$sum": 1}}}
    checkpoints, leases, letters = await storage.read(
        Query("checkpoints", {}, order=1, then=(age,)),
        Query("leases", held),
        Query("dead_letters", {}, then=(count,)),
    )
    holders = {each["_id"]: each["holder"] for each in leases}
    counts = {each["_id"]: each["count"] for each in letters}
    return [_status(each, now.time, holders, counts) for each in checkpoints]


def _status(
    checkpoint: Document,
    now: int,
    holders: dict[str, Document],
    letters: dict[str, int],
) -> ConsumerStatus:
    place, age = checkpoint["position"], checkpoint.get("age")
    holder = holders.get(checkpoint["_id"], {})
    owner = "{host}:{pid}:{token:.8}".format_map(holder) if holder else None
    return ConsumerStatus(
        name=checkpoint["_id"],
        app_name=checkpoint["app_name"],
        is_active=owner is not None,
        owner=owner,
        epoch=checkpoint["epoch"],
        is_replaying=bool(place and place["is_replaying"]),
        lag_seconds=float(now - place["reached"].time) if place else None,
        checkpoint_age_seconds=age / 1000 if age is not None else None,
        dead_letters=letters.get(checkpoint["_id"], 0),
        is_locked_out=holder.get("is_locked_out", False),
    )
