"""Forks: new sessions with another's first events, which the server copies.

A reservation holds the new session's place until all events are copied. Each step
renews it. If it expires, its removal includes the copied events, and the fork fails.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import starmap, zip_longest
from typing import Final, NoReturn

import bson
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time

from mongo_session_service.codec.bson_values import decode_fields
from mongo_session_service.codec.documents import decode_event, session_document
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.record import (
    COPIED_BY,
    STATES,
    SessionRecord,
    encode_origin,
)
from mongo_session_service.codec.waiting_calls import REDACTED
from mongo_session_service.errors import (
    InvalidInputError,
    MongoSessionServiceError,
    StorageUnavailableError,
    quoted,
    session_exists_error,
    session_not_found_error,
)
from mongo_session_service.model.metadata import (
    ADK_METADATA,
    StoredDetails,
    display_name,
)
from mongo_session_service.model.records import (
    Document,
    NewSession,
    ScopedState,
    SessionKey,
)
from mongo_session_service.sessions import branches, deletion, event_log, queries
from mongo_session_service.sessions.batch import initial_updates
from mongo_session_service.sessions.deletion import FORK, Reservations
from mongo_session_service.sessions.waiting_log import pending_call_fields
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import (
    DuplicateError,
    Insert,
    Query,
    Statement,
    TooLateError,
    Update,
)
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.storage.transactions import Transaction

MAX_ORIGINS: Final = 100
"""How many sessions outside of its family a fork of forks names at most, the nearest.
"""

FORK_LIFETIME: Final = 60.0
"""Seconds that a step may take before the fork counts as interrupted."""

_STEP_SECONDS: Final = 40
"""The server's time limit for a step: it ends before the reservation expires."""

_LOST: Final = (
    "The fork took too long: its reservation expired and was removed. Try again."
)


_CHANGED: Final = "The session was {} during the fork, which was removed. Try again."


async def copy_session(
    storage: Storage,
    source: SessionKey,
    target: SessionKey,
    until: int | str | None,
) -> None:
    """Store a session with another's events up to a point, and the state they give.

    The point is the last revision to copy, or the id of the invocation whose events,
    and all that follow, are left out; None for all events. If the copy took too long,
    or the source was trimmed meanwhile, it is removed, and ``StorageUnavailableError``
    raised.
    """
    origin = await event_log.read_with_initial_state(storage, source)
    if isinstance(until, str):
        until = await _first_revision(storage, until, origin) - 1
    revision = event_log.logged_revision(origin, until)
    await Fork(storage, target, origin, revision).make()


async def new_branch(
    storage: Storage,
    source: SessionKey,
    target: SessionKey,
    invocation_id: str,
    *,
    asks_again: bool,
) -> tuple[Fork, Event]:
    """Return the fork that is to be made, of the events before an invocation.

    It is a branch of the source, which the family shows once it is made. Also returns
    the message by which the invocation began, which is refused if it is to be asked
    again and cannot be.
    """
    origin = await event_log.read_with_initial_state(storage, source)
    first = await _first_revision(storage, invocation_id, origin)
    query = Query("events", {"_id": source.event_id(first)})
    stored = await storage.find_one(query, patient=True)
    if stored is None:
        raise StorageUnavailableError(_CHANGED.format("trimmed"))
    message = decode_event(EventRecord(stored), storage.hooks)
    content = message.content
    parts = (content.parts if content else None) or []
    answers = any(each.function_response for each in parts)
    is_message = message.author == "user" and bool(parts) and not answers
    which = f"Invocation {quoted(invocation_id)} of the session"
    if first == origin.begins + 1 > 1 and not is_message:
        raise InvalidInputError(f"{which} is not whole: its beginning was trimmed.")
    if asks_again and (not is_message or REDACTED in (message.custom_metadata or {})):
        why = "began with no message" if not is_message else "has a redacted message"
        raise InvalidInputError(f"{which} {why}: give a new_message.")
    fork = Fork(storage, target, origin, first - 1, invocation_id, asks_again)
    return fork, message


async def _first_revision(
    storage: Storage, invocation_id: str, session: SessionRecord
) -> int:
    log = event_log.LogAtRevision.of(session)
    firsts = await event_log.find_firsts(storage, log, {invocation_id})
    if invocation_id not in firsts:
        which = quoted(invocation_id)
        trimmed = ", or it was trimmed" if log.begins else ""
        raise InvalidInputError(
            f"The session has no event of invocation {which}{trimmed}."
        )
    return firsts[invocation_id]


@dataclass(frozen=True, slots=True)
class Fork:
    storage: Storage
    target: SessionKey
    origin: SessionRecord
    """The source, with its initial state."""
    revision: int
    before: str | None = None
    """Of a branch, the source's invocation that comes next there."""
    repeats: bool = False
    """Whether its own first event repeats the source's next one."""
    reservations: Reservations = field(
        default_factory=lambda: Reservations(FORK, FORK_LIFETIME)
    )

    async def make(self) -> None:
        """Copy the events, and store the session."""
        try:
            await self.reserve()
            await self.copy_log()
            await self.renew()
            await self.store_session(*await self.build_session())
        except (AlreadyExistsError, StorageUnavailableError):
            # There is no reservation to give up, or the server may still be copying,
            # and the reservation must expire.
            raise
        except BaseException:
            await uninterrupted(self.remove_copy())
            raise

    @property
    def reservation(self) -> Document:
        return self.reservations.held_filter(self.target)

    async def reserve(self) -> None:
        """Hold the target's place, unless a session is stored there."""
        storage, key = self.storage, self.target

        async def insert() -> None:
            reservation = {"_id": key.id, **self.reservations.new_fields(storage)}
            try:
                await storage.commit(Insert("sessions", [reservation]))
            except DuplicateError:
                raise session_exists_error(key.session_id) from None

        await deletion.store_in_place(storage, key, insert)

    async def renew(self) -> None:
        renewal = {"$set": self.reservations.new_fields(self.storage)}
        renewing = Update("sessions", self.reservation, renewal)
        if await self.storage.commit(renewing) == [0]:
            await self._give_up(_LOST)

    async def copy_log(self) -> None:
        after = self.origin.begins
        step = self.storage.limits.fork_step
        while after < self.revision:
            await self.renew()
            until = min(after + step, self.revision)
            try:
                await self.copy_events(after, until)
            except TooLateError:
                if step == 1:
                    raise
                step = max(step // 8, 1)  # large events; those copied are kept
            else:
                after = until

    async def copy_events(self, after: int, until: int) -> None:
        log = queries.events_after(self.origin.key, after, until)
        new = {"_id.session_id": self.target.session_id, COPIED_BY: "fork"}
        await self.storage.copy("events", log, new, time_limit=_STEP_SECONDS)

    async def build_session(self) -> tuple[Document, list[Update]]:
        """Build the new session's document, and updates for a large initial state."""
        storage, head, until = self.storage, self.origin, self.revision
        now = platform_time.get_time()
        state = head.state
        if until < head.revision:
            state = await event_log.state_at(storage, head, until)
        details = self._copied_details(state)
        new = NewSession(
            self.target,
            # The order of a family is that of creation, whatever a clock shows.
            max(now, head.created + 1e-6) if self.before else now,
            ScopedState(session=head.initial),
            len(bson.encode(head.initial)),
            details.with_renewed_expiry(storage.clock.now()),
            head.begins,
            self._origins(),
        )
        log = event_log.LogAtRevision.of(head)._replace(until=until)
        waiting = await pending_call_fields(storage, log, self.target)
        own = {"state": state, "revision": until, COPIED_BY: "fork"}
        return {**session_document(new), **waiting, **own}, initial_updates([new])

    def _origins(self) -> list[Document]:
        head, until = self.origin, self.revision
        held = head.held | {head.origin: math.inf}
        source, *cut = (
            (origin, min(shared, until), self.repeats and held[origin] > until)
            for origin, shared in ({head.origin: math.inf} | head.origins).items()
        )
        of_family = len(head.origins_in_family)
        near, far = cut[:of_family], cut[of_family:][:MAX_ORIGINS]
        if self.before is not None:  # few, however often one message is edited
            pairs = zip_longest(near, (shared for _, *shared in near[1:]))
            near = [each for each, following in pairs if [*each[1:]] != following]
        return [*starmap(encode_origin, (source, *near, *far))]

    def _copied_details(self, state: Document) -> StoredDetails:
        """Return the source's details, titled by the display name of a past state."""
        head, hooks = self.origin, self.storage.hooks
        details, named = head.without_family().details, state.get(ADK_METADATA)
        if named == head.state.get(ADK_METADATA) or not hooks.is_missing:
            return details
        past = decode_fields({ADK_METADATA: named})
        return details.model_copy(update={"title": display_name(past)})

    async def store_session(self, document: Document, apart: list[Update]) -> None:
        storage, held = self.storage, self.reservation
        source = {
            **queries.writable_filter(storage),
            **self.origin.expected(),
        }

        async def replace_reservation(tx: Transaction) -> str | None:
            stored = await tx.find_one(Query("sessions", source, without=STATES))
            if not stored:
                raise session_not_found_error(self.origin.key.session_id)
            found = SessionRecord.read(stored)
            if found.begins != self.origin.begins:
                return _CHANGED.format("trimmed")
            if found.redactions != self.origin.redactions:
                return _CHANGED.format("redacted")
            if not await tx.find_one(Query("sessions", held, fields=("_id",))):
                return _LOST
            await tx.write(*apart)
            new, hiding = document, list[Statement]()
            if self.before is not None:
                new, hiding = await branches.join_family(
                    storage, found, document, self.before, tx
                )
            if storage.has_transactions:
                silently = deletion.placeholder_removal_statements(storage, self.target)
                await tx.write(*silently, Insert("sessions", [new]))
            else:
                await tx.write(Update("sessions", held, new))
            await tx.write(*hiding)
            return None

        if problem := await storage.run(replace_reservation):
            await self._give_up(problem)

    async def _give_up(self, problem: str) -> NoReturn:
        await uninterrupted(self.remove_copy())
        raise StorageUnavailableError(problem)

    async def undo(self) -> None:
        """Remove what was made, as far as MongoDB can be reached."""
        with suppress(MongoSessionServiceError):
            await deletion.remove_session(self.storage, self.target)

    async def remove_copy(self) -> None:
        """Remove what was copied, as far as MongoDB can be reached."""
        with suppress(MongoSessionServiceError):
            await deletion.remove_reserved(self.storage, self.reservation)
