"""Forks: new sessions with another's first events, which the server copies.

A reservation holds the new session's place until all events are copied. Each step
renews it. If it expires, its removal includes the copied events, and the fork fails.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice, starmap
from typing import Final

import bson
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.platform import time as platform_time

from mongo_session_service.codec.bson_values import decode_fields, encode_value
from mongo_session_service.codec.documents import decode_event, session_document
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.record import (
    COPIED_BY,
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
)
from mongo_session_service.model.metadata import (
    ADK_METADATA,
    StoredDetails,
    display_name,
)
from mongo_session_service.model.records import (
    Birth,
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
    RefusedError,
    TooLateError,
    Update,
)
from mongo_session_service.storage.tasks import uninterrupted

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


async def copy_session(
    storage: Storage, source: SessionKey, target: SessionKey, until: int | str | None
) -> None:
    """Store a session with another's events up to a point, and the state they give.

    The point is the last revision to copy, or the id of the invocation whose events,
    and all that follow, are left out; None for all events. If the copy took too long,
    or the source was trimmed meanwhile, it is removed, and ``StorageUnavailableError``
    raised.
    """
    origin = await event_log.read_with_initial_state(storage, source)
    if isinstance(until, str):
        first, _ = await _first_event(storage, until, origin)
        until = first - 1
    revision = event_log.logged_revision(origin, until)
    fork = Fork(storage, target, origin, revision)
    async with fork.removed_on_failure():
        await fork.store_session(await fork.copy())


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
    first, message = await _first_event(storage, invocation_id, origin)
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


async def _first_event(
    storage: Storage, invocation_id: str, session: SessionRecord
) -> tuple[int, Event]:
    log = event_log.LogAtRevision.of(session)
    query = Query("events", log.where, order=1)
    if not event_log.is_sealed(storage):
        own = {event_log.INVOCATION: encode_value(invocation_id)}
        query = replace(query, filter=log.where | own, limit=1)
    async for page in storage.scan(query):
        for each in map(EventRecord, page.documents):
            event = decode_event(each, storage.hooks)
            if event.invocation_id == invocation_id:
                return each.revision, event
    which = quoted(invocation_id)
    trimmed = ", or it was trimmed" if log.begins else ""
    raise InvalidInputError(f"The session has no event of invocation {which}{trimmed}.")


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

    async def copy(self) -> Birth:
        """Copy the events; return what is to be stored in place of the reservation."""
        await self.reserve()
        await self.copy_log()
        return await self.build_session()

    async def store_session(self, new: Birth) -> None:
        storage = self.storage
        try:
            await storage.run(lambda tx: branches.bear(storage, new, tx))
        except RefusedError as error:
            await uninterrupted(self.remove_copy())
            raise StorageUnavailableError(str(error) or _LOST) from None

    @asynccontextmanager
    async def removed_on_failure(self) -> AsyncGenerator[None]:
        """Remove what the block has copied, if it fails."""
        try:
            yield
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
            # A turn that holds it prolongs it as it does a session with a ttl.
            reservation = {"_id": key.id, "ttl": FORK_LIFETIME}
            reservation |= self.reservations.new_fields(storage)
            try:
                await storage.commit(Insert("sessions", [reservation]))
            except DuplicateError:
                raise session_exists_error(key.session_id) from None

        await deletion.store_in_place(storage, key, insert)

    async def renew(self) -> None:
        renewal = {"$set": self.reservations.new_fields(self.storage)}
        renewing = Update("sessions", self.reservation, renewal)
        if await self.storage.commit(renewing) == [0]:
            await uninterrupted(self.remove_copy())
            raise StorageUnavailableError(_LOST)

    async def copy_log(self) -> None:
        after = self.origin.begins
        step = self.storage.limits.fork_step
        while after < self.revision:
            until = min(after + step, self.revision)
            try:
                await self.copy_events(after, until)
            except TooLateError:
                if step == 1:
                    raise
                step = max(step // 8, 1)  # large events; those copied are kept
            else:
                after = until
            if after < self.revision:
                await self.renew()

    async def copy_events(self, after: int, until: int) -> None:
        log = queries.events_after(self.origin.key, after, until)
        new = {"_id.session_id": self.target.session_id, COPIED_BY: "fork"}
        await self.storage.copy("events", log, new, time_limit=_STEP_SECONDS)

    async def build_session(self) -> Birth:
        """Build the new session's document, and updates for a large initial state."""
        storage, head, until = self.storage, self.origin, self.revision
        state = head.state
        if until < head.revision:
            state = await event_log.state_at(storage, head, until)
        details = self._copied_details(state)
        new = NewSession(
            self.target,
            platform_time.get_time(),
            ScopedState(session=head.initial),
            len(bson.encode(head.initial)),
            details.with_renewed_expiry(storage.clock.now()),
            head.begins,
            self._origins(),
        )
        log = event_log.LogAtRevision.of(head)._replace(until=until)
        waiting = await pending_call_fields(storage, log, self.target)
        own = {"state": state, "revision": until, COPIED_BY: "fork"}
        return Birth(
            {**session_document(new), **waiting, **own},
            initial_updates([new]),
            self.reservation,
            {**queries.writable_filter(storage), **head.expected()},
            (head.begins, head.redactions),
            self.before,
            self.repeats,
        )

    def _origins(self) -> list[Document]:
        """What it was made of; a family has the origins of its own branches."""
        head, until = self.origin, self.revision
        held = head.held | {head.origin: math.inf}
        cut = (
            (origin, min(shared, until), self.repeats and held[origin] > until)
            for origin, shared in ({head.origin: math.inf} | head.origins).items()
        )
        # A family has where its own branches come from.
        outside = islice(cut, self.before is not None, MAX_ORIGINS + 1)
        return [*starmap(encode_origin, outside)]

    def _copied_details(self, state: Document) -> StoredDetails:
        """Return the source's details, titled by the display name of a past state."""
        head, hooks = self.origin, self.storage.hooks
        details, named = head.details, state.get(ADK_METADATA)
        if named == head.state.get(ADK_METADATA) or not hooks.is_missing:
            return details
        past = decode_fields({ADK_METADATA: named})
        return details.model_copy(update={"title": display_name(past)})

    async def remove_copy(self) -> None:
        """Remove what was copied, as far as MongoDB can be reached."""
        with suppress(MongoSessionServiceError):
            await deletion.remove_reserved(self.storage, self.reservation)
