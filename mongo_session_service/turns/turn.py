"""Turn: the exclusive right to work on a session, held for the body of a statement.

The field ``turn`` of a session's document has, beside the lease's fields and
``interrupter``, of the waiting line:

- ``first_revision``: of the first event that was appended within the turn. It goes when
  the turn is released; so who acquires the turn knows whether it was abandoned.
- ``stop``: that somebody wants the turn to be stopped, and why.
- ``resumed``: the invocation that was resumed after its process died, and how often.
- ``ended``: status, begin, host, reason and error of the last turn that was released.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from google.adk.events.event import Event
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session

from mongo_session_service.backend import Backend, Backends, Stage
from mongo_session_service.codec.adk_session import to_session
from mongo_session_service.codec.documents import StoredSession
from mongo_session_service.codec.partials import encode_turn
from mongo_session_service.codec.record import HEAD, SessionRecord
from mongo_session_service.errors import (
    MongoSessionServiceError,
    TurnTakenError,
    quoted,
    session_not_found_error,
    turn_stopped_error,
)
from mongo_session_service.model.records import (
    Birth,
    Document,
    SessionKey,
    TurnFence,
)
from mongo_session_service.model.results import TurnInfo, TurnPhase
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.queries import NO_EVENTS
from mongo_session_service.sessions.reads import find_head, missing_session_error
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.lease import (
    Lease,
    LeaseRenewer,
    lease_has_expired,
    lease_is_free,
)
from mongo_session_service.storage.statements import Query, TooLateError, Update
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.telemetry import ABANDONED_TURNS, Operation
from mongo_session_service.turns.closing_events import (
    closing_events_of_abandoned,
    with_reason,
)
from mongo_session_service.turns.partial_events import announce_abandoned_turn
from mongo_session_service.turns.waiting_line import INTERRUPTER, WaitingLine

logger = logging.getLogger(__name__)

_held: ContextVar[tuple[Turn, ...]] = ContextVar("turns", default=())
"""The turns in whose bodies the running code is."""

HELD: Final = "turn.holder"
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DIED: Final = "its process died"
_INTERRUPTED: Final = "another turn was started"
_ATTEMPTS: Final = 2
"""How often an invocation is resumed whose process dies each time."""
_ERASURE_WAITS: Final = 3.0
"""Seconds that running turns have to end before their sessions are erased."""
_NESTED: Final = (
    "The turn of session {} is held here already, so that a second one would wait for"
    " itself. Use the Session of the first."
)


class Turns:
    """The turns of one service."""

    def __init__(
        self, backends: Backends, renewer: LeaseRenewer, database_name: str
    ) -> None:
        self.backends = backends
        self.renewer = renewer
        self.database_name = database_name

    def held_turn(self, key: SessionKey) -> Turn | None:
        """Find the session's turn that the caller is in; raise if it was stopped."""
        if not (held := _held.get()):
            return None
        own = [each for each in held if each.key == key and each.turns is self]
        for each in own:
            if each.is_held:
                return each
        if any(each.has_runaway for each in own):
            raise turn_stopped_error(key.session_id)
        return None

    def unborn_branch(self, key: SessionKey) -> Birth | None:
        """Find the branch, not stored yet, whose turn the caller is in."""
        own = [it for it in _held.get() if it.key == key and it.turns is self]
        return next((each.unborn for each in own if each.unborn), None)

    def refuse_nested(self, key: SessionKey) -> None:
        """Refuse a caller who would wait for the end of the turn that it is in."""
        if self.held_turn(key) is not None:
            raise MongoSessionServiceError(_NESTED.format(quoted(key.session_id)))

    async def stop_running(
        self, storage: Storage, key: SessionKey, wait: float | None
    ) -> None:
        """Stop the turn that runs in a session, if any does, and wait for its end."""
        self.refuse_nested(key)
        if not await request_stop(storage, key, _INTERRUPTED):
            return
        try:
            async with asyncio.timeout(wait):
                # Another process sends no signal.
                while await request_stop(storage, key, _INTERRUPTED):  # noqa: ASYNC110
                    await asyncio.sleep(storage.limits.turn_poll_seconds)
        except TimeoutError:
            raise TurnTakenError(
                f"The turn of session {quoted(key.session_id)} did not end within"
                f" {wait:g} seconds. Try again, or wait for longer."
            ) from None

    def call_lines(self, call: Callable[[WaitingLine], None]) -> None:
        """Call a method of the waiting lines of all event loops, in each."""
        for loop, line in self.backends.parts(WaitingLine).items():
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(call, line)


class Turn:
    """A turn of a session: an async context manager that gives it as it is then."""

    def __init__(
        self,
        turns: Turns,
        key: SessionKey,
        wait: float | None,
        config: GetSessionConfig | None = NO_EVENTS,
    ) -> None:
        self.turns = turns
        self.key = key
        self._config = config
        """Which events of the session it gives."""
        self.fence: TurnFence | None = None
        """The fence: an append within it expects this."""
        self.unborn: Birth | None = None
        """The branch that it is to be a turn of, until its first event is stored."""
        self.has_begun = asyncio.Event()
        """Set once it is held, and its session is stored."""
        self.is_held = False
        self._limit = math.inf if wait is None else wait
        self.interrupts = False
        """Whether it stops who has the turn, unless a later caller does."""
        self.root_agent_name: str | None = None
        """The author of the mark that the turn before was cut off, if it was."""
        self.resumes = False
        """Whether the invocation of an abandoned turn is to go on in it."""
        self.resumed_invocation: str | None = None
        """The invocation that goes on in it."""
        self._has_ttl = False
        self.has_open_log = False
        """Whether the log may have open calls, which the next turn is to close."""
        self.runaway: asyncio.Task[None] | None = None
        """The agent that goes on though it was stopped, and may append nothing."""
        self.info = TurnInfo(
            *key, epoch=0, status="running", since=_LONG_AGO, host=socket.gethostname()
        )
        """How it stands, and how it has ended."""

    @property
    def is_lost(self) -> bool:
        """Whether another caller is known to have taken it over."""
        return self._lease.is_lost

    @property
    def has_runaway(self) -> bool:
        return self.runaway is not None and not self.runaway.done()

    async def load_own_events(self) -> list[Event]:
        """Load what was appended from the first event of the turn on."""
        backend = await self.turns.backends.backend()
        fields = (queries.TURN_FIRST_REVISION,)
        query = Query("sessions", {"_id": self.key.id}, fields=fields)
        session = await backend.storage.find_one(query) or {}
        first = SessionRecord.part(self.key, session).turn.get("first_revision")
        config = None if first else NO_EVENTS
        return (await self._load(backend, config, (first or 1) - 1)).events

    def set_status(
        self, status: TurnPhase, reason: str | None = None, error: str | None = None
    ) -> None:
        """Set the status and its reason; without a reason, the earlier one stays."""
        info = self.info
        self.info = info._replace(
            status=status, reason=reason or info.reason, error_type=error
        )

    def fail_if_taken_over(self) -> None:
        """Let it end as failed if the caller has it since a process has died in it."""
        if self._lease.replaces_dead:
            self.set_status("failed", reason=_DIED)

    async def append_event(self, event: Event) -> None:
        """Append an event at the end of the log, after whatever is there."""
        started = time.monotonic()
        backend = await self.turns.backends.backend(Stage.SET_UP)
        end = to_session(await backend.reads.read_end(self.key))
        event = with_reason(event, self.info.reason)
        await backend.appender.append(
            self.key, end, event, self.fence, started, on_conflict="close"
        )

    def extend(self, started: float) -> None:
        """An append in its body, which began then, has renewed it."""
        self._lease.renewed_at = started
        if self.unborn is not None and self.fence is not None:
            self.unborn, self.fence = None, self.fence._replace(birth=None)
            self.has_begun.set()

    async def __aenter__(self) -> Session:
        app_name, _, session_id = self.key
        self.turns.refuse_nested(self.key)
        self._started = time.monotonic()
        with Operation("turn", self.turns.database_name, app_name, session_id):
            # Whoever takes over a turn ends the client sessions of its loop.
            backend = await self.turns.backends.backend(stays=True)
            storage = backend.storage
            self._storage = storage
            self._lease = Lease(storage, "sessions", self.key.id, "turn.")
            if not storage.is_mock:
                least = storage.limits.lease_seconds
                self._lease.renewed_with = queries.renewed_life(storage, least)
            self._line = backend.part(WaitingLine, storage)
            try:
                session = await self._begin_turn(backend)
            except BaseException:
                await self._end_turn()
                raise
        inherited = (each for each in _held.get() if each.is_held or each.has_runaway)
        _held.set((*inherited, self))
        return session

    async def __aexit__(self, *_: object) -> None:
        await self._end_turn()
        _held.set(tuple(each for each in _held.get() if each.is_held))

    async def _begin_turn(self, backend: Backend) -> Session:
        if not self._limit:
            await self._try_once()
        else:
            limit = None if self._limit == math.inf else self._seconds_left
            try:
                async with asyncio.timeout(limit) as timer:
                    await self._wait_in_line()
            except TimeoutError:
                if not timer.expired():
                    raise
        if not self._lease.epoch:
            raise await self._busy_error()
        found = self._lease.found
        since = found["since"].replace(tzinfo=UTC)
        self.info = self.info._replace(epoch=self._lease.epoch, since=since)
        self.has_open_log = "first_revision" in found
        self.is_held = True
        self.turns.renewer.keep_renewing(self._lease)
        if self.has_open_log:  # whoever had the turn before has not released it
            await self._close_abandoned(backend)
        stored = await self._load(backend, self._config)
        self._has_ttl = stored.marker.ttl is not None and not backend.storage.is_mock
        await self._renew_life(backend.storage.limits.lease_seconds)
        return to_session(stored)

    async def _close_abandoned(self, backend: Backend) -> None:
        """Close what the turn before has left open; resume its invocation if wanted."""
        ABANDONED_TURNS[self.turns.database_name] += 1
        own = await self.load_own_events()
        closing = closing_events_of_abandoned(own, self.root_agent_name)
        for event in closing:
            await self.append_event(with_reason(event, _DIED))
        await announce_abandoned_turn(backend.storage, self.info, _DIED)
        last = self._lease.found.get("resumed", {})
        invocation = own[-1].invocation_id if own else last.get("invocation_id")
        is_same = last.get("invocation_id") == invocation
        attempts = last.get("attempts", 0) if is_same else 0
        is_given_up = attempts >= _ATTEMPTS
        outcome = "was resumed before, and is given up" if is_given_up else "has ended"
        change: Document = {"$unset": {queries.TURN_FIRST_REVISION: ""}}
        self.has_open_log = self.resumes and bool(invocation) and not is_given_up
        if self.has_open_log:
            outcome, self.resumed_invocation = "is resumed", invocation
            resumed = {"invocation_id": invocation, "attempts": attempts + 1}
            # The next process finds it if this one dies before it appends anything.
            end = self._lease.found["first_revision"] + len(own) + len(closing)
            kept = {"turn.resumed": resumed, queries.TURN_FIRST_REVISION: end}
            change = {"$set": kept}
        await self._update_session(change)
        logger.warning(
            "The process of turn %d of session %s has died. The turn %s. Closing"
            " events: %d.",
            self.info.epoch - 1,
            quoted(self.key.session_id),
            outcome,
            len(closing),
        )

    async def _renew_life(self, least: float = 0.0) -> None:
        """Have a session with a ``ttl`` live for that from now on."""
        if self._has_ttl:
            longer = queries.renewed_life(self._storage, least)
            await self._update_session(longer)

    async def _update_session(self, change: Document | Sequence[Document]) -> None:
        """Update the session's document, unless another has taken the turn over."""
        own = {"_id": self.key.id, queries.TURN_EPOCH: self._lease.epoch}
        await self._storage.commit(Update("sessions", own, change))

    async def _load(
        self,
        backend: Backend,
        config: GetSessionConfig | None,
        after_revision: int = 0,
    ) -> StoredSession:
        stored: StoredSession | None
        if self.unborn is None:
            reads = backend.reads
            stored = await reads.read_session(self.key, config, after_revision)
        else:  # nobody needs its state here
            record = SessionRecord(self.key, self.unborn.document)
            stored = StoredSession(record, {}, [])
        known = self.fence
        if stored is None or (known and known.create_time != stored.marker.create_time):
            raise session_not_found_error(self.key.session_id)
        created = stored.marker.create_time
        self.info = self.info._replace(session_create_time=created)
        self.fence = TurnFence(self._lease.epoch, created, self.unborn)
        return stored

    @property
    def _seconds_left(self) -> float:
        return max(self._started + self._limit - time.monotonic(), 0.0)

    def _stored_filter(self) -> Document:
        if self.unborn is not None:
            return self.unborn.held
        return {"_id": self.key.id, **queries.writable_filter(self._storage)}

    async def _acquire(self, *, has_waited: bool = False) -> bool:
        """Acquire the turn if it is free, and no later caller interrupts this one."""
        storage = self._storage
        self._lease.client_sessions = await storage.client_session_ids()
        where = self._stored_filter()
        forget = ["stop", "ended"]
        if self.interrupts and has_waited:
            where[INTERRUPTER] = self._lease.token
        elif self.interrupts:
            forget.append("interrupter")
        async with self._line.acquiring:
            turn = await self._lease.acquire(where, self._seconds_left, forget=forget)
        return turn is not None

    async def _try_once(self) -> None:
        if self._line.has_waiters(self.key) or await self._acquire():
            return
        if self.interrupts:
            await request_stop(self._storage, self.key, _INTERRUPTED)

    async def _wait_in_line(self) -> None:
        """Acquire the turn once all who came before in this event loop have had it."""
        line = self._line
        async with line.arrival(self.key):
            if not line.has_waiters(self.key) and await self._acquire():
                return
            token = await uninterrupted(self._overtake()) if self.interrupts else None
        with line.join(self.key, token) as waiter:
            while not self._lease.epoch:
                if await waiter.wait_until_called():
                    await self._acquire(has_waited=True)
                else:
                    await request_stop(self._storage, self.key, _INTERRUPTED)

    async def _overtake(self) -> str:
        """Have those fail who interrupt and have come before; return its token."""
        storage, token = self._storage, self._lease.token
        where = self._stored_filter()
        marking = Update("sessions", where, {"$set": {INTERRUPTER: token}})
        if await self._lease.write_past_dead_holder(storage.commit(marking)) == [0]:
            raise await missing_session_error(storage, self.key)
        return token

    async def _busy_error(self) -> TimeoutError:
        """Return the error that names the holder of the turn."""
        storage = self._storage
        where = self._stored_filter()
        session = await storage.find_one(Query("sessions", where, fields=("turn",)))
        if session is None:
            raise await missing_session_error(storage, self.key)
        turn = SessionRecord.part(self.key, session).turn
        who = "others wait for its turn as well"
        if holder := turn.get("holder"):
            since = f"{turn['since']:%Y-%m-%d %H:%M:%S} UTC"
            process = f"process {holder['pid']} on host {holder['host']}"
            who = f"{process} has had its turn since {since}"
        return TurnTakenError(
            f"Session {quoted(self.key.session_id)} was not free within"
            f" {self._limit:g} seconds: {who}. Try again, or wait for longer with"
            " turn(wait=...)."
        )

    async def _end_turn(self) -> None:
        self.is_held = False
        if self.info.status in {"running", "stopping"}:
            self.set_status("abandoned" if self.has_open_log else "ended")
        self.turns.renewer.stop_renewing(self._lease)
        try:
            await uninterrupted(self._release_turn())
        except (MongoSessionServiceError, TimeoutError) as error:
            if self._lease.epoch:
                why = "A turn was not released, and expires by itself. %s"
                logger.warning(why, error)
        finally:
            self.turns.call_lines(WaitingLine.check_turns)

    async def _release_turn(self) -> None:
        # Perhaps with another client: the body may have closed the service.
        backend = await self.turns.backends.backend()
        self._storage = self._lease.storage = backend.storage
        await self._renew_life()
        if self.info.status == "abandoned":  # whoever can close its log is to have it
            await self._lease.expire(forget=["stop"])
        else:
            forget = ["stop", "resumed"]
            if not self.has_open_log:
                forget.append("first_revision")
            ended = {"ended": encode_turn(self.info)}
            await self._lease.release(ended, forget=forget)


async def request_stop(storage: Storage, key: SessionKey, reason: str | None) -> bool:
    """Let the turn of a session be stopped soon; False if none runs."""
    stop = {"turn.stop": {} if reason is None else {"reason": reason}}
    running = {"_id": key.id, HELD: {"$exists": True}, **queries.NEEDS_KNOWN}
    running["$expr"] = {"$not": lease_is_free(storage, "turn.")}
    stopping = Update("sessions", running, {"$set": stop})
    turn = Lease(storage, "sessions", key.id, "turn.")
    if await turn.write_past_dead_holder(storage.commit(stopping)) == [1]:
        return True
    await find_head(storage, key)  # refuses what this release must not touch
    return False


def is_in_turn_of(app_name: str, user_id: str | None) -> bool:
    """Whether the caller is in a turn of an app, or of a user, as a tool is."""
    owner = (app_name,) if user_id is None else (app_name, user_id)
    return any(it.is_held and it.key[: len(owner)] == owner for it in _held.get())


_ERASED: Final = {"reason": "its session is being erased", "erases": True}


async def end_turns_of_erased(
    storage: Storage, app_name: str, user_id: str | None
) -> None:
    """Have the turns of an app, or of a user, end without a word; wait for a while.

    A plain turn has nothing to stop, and loses its session.
    """
    held = turns_filter(app_name, user_id, "running", storage.clock.now())
    held |= queries.NEEDS_KNOWN
    held["$expr"] = {"$not": lease_is_free(storage, "turn.")}
    stopping = Update("sessions", held, {"$set": {"turn.stop": _ERASED}}, many=True)
    with suppress(TimeoutError, TooLateError):
        async with asyncio.timeout(_ERASURE_WAITS):
            # Other processes send no signal.
            while await storage.commit(stopping, time_limit=_ERASURE_WAITS) != [0]:  # noqa: ASYNC110
                await asyncio.sleep(storage.limits.turn_poll_seconds)


async def find_abandoned(storage: Storage, app_name: str) -> dict[SessionKey, bool]:
    """Find abandoned turns of an app, and whether they were resumed before."""
    where = turns_filter(app_name, None, "abandoned", storage.clock.now())
    fields = {"turn.resumed": 1, "is_free": lease_is_free(storage, "turn.")}
    stages = ({"$project": fields}, {"$match": {"is_free": True}})
    (found,) = await storage.read(Query("sessions", where, then=stages))
    parts = [SessionRecord.part(SessionKey(**each["_id"]), each) for each in found]
    return {each.key: "resumed" in each.turn for each in parts}


async def find_turns(
    storage: Storage,
    app_name: str | None,
    user_id: str | None,
    status: TurnPhase | None,
) -> list[TurnInfo]:
    """Find turns, in the order of app, user and session."""
    where = turns_filter(app_name, user_id, status, storage.clock.now())
    (found,) = await storage.read(Query("sessions", where, fields=("turn", *HEAD)))
    turns = (last_turn(storage, each) for each in SessionRecord.read_all(found))
    return sorted(each for each in turns if each and status in {None, each.status})


async def find_last_turn(backends: Backends, key: SessionKey) -> TurnInfo | None:
    """Find the turn that a session has, or had last; None if it never had one."""
    storage = (await backends.backend()).storage
    head = await find_head(storage, key)
    return None if head is None else last_turn(storage, head)


def last_turn(storage: Storage, record: SessionRecord) -> TurnInfo | None:
    """The turn that a session has, or had last, by the service's clock."""
    is_free = lease_has_expired(storage, record.turn, storage.clock.now())
    return record.turn_info(is_free=is_free)


def turns_filter(
    app_name: str | None, user_id: str | None, status: TurnPhase | None, now: float
) -> Document:
    """The filter of sessions whose turns may have a status."""
    where: Document = {**queries.visible_filter(now)}
    if app_name is not None:
        where["_id.app_name"] = app_name
    if user_id is not None:
        where["_id.user_id"] = user_id
    if status in {None, "running", "stopping", "abandoned"}:
        # All of them are in an index, in the order of their begin.
        return {**where, HELD: {"$exists": True}, "turn.since": {"$gt": _LONG_AGO}}
    return {**where, "turn.ended.status": status}
