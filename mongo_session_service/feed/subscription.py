"""Subscriptions: what one reader receives of the feed, without gap or duplicate."""

from __future__ import annotations

from collections import deque
from typing import Self

from bson.timestamp import Timestamp
from google.adk.platform import time as platform_time

from mongo_session_service._public import public
from mongo_session_service.backend import Backend
from mongo_session_service.changes.change import Change
from mongo_session_service.changes.decoder import ChangeRecord
from mongo_session_service.changes.routing import Scope
from mongo_session_service.errors import (
    InvalidInputError,
    SlowSubscriberError,
    TrimmedError,
    session_not_found_error,
)
from mongo_session_service.feed.feed import Feed, Feeds, Inbox
from mongo_session_service.feed.place import Place
from mongo_session_service.feed.turn_filters import TurnFilter, TurnFilters
from mongo_session_service.feed.view import View, load_view
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage.snapshots import NO_TIME


@public
class Subscription:
    """Changes as they are committed: an async context manager and iterator.

    ::

        async with service.watch("my_app", "ada", "monday") as changes:
            async for change in changes:
                print(change.kind, change.state_delta)

    Each change is delivered once, in the order of commit. The subscription ends after
    ``deleted``, when it is closed, and when the service is closed. One that was to go
    on in a session that was deleted and made anew under its id begins with ``deleted``
    and a ``snapshot`` instead. A cancelled reader loses nothing: the next ``anext()``
    resumes where it was.

    Opening raises ``SessionNotFoundError``, ``InvalidInputError`` for an
    ``after_revision`` the session has not reached, and the errors of every call of the
    service. Reading raises:

    - ``SlowSubscriberError``: it was read too slowly; resume after its ``place``.
    - ``HistoryLostError``: the change stream cannot be resumed, or the watched
      collections were dropped. In the first case a session's subscription continues
      from storage instead, and does not raise.
    - ``StorageUnavailableError``: MongoDB has been unreachable for a minute.
    - ``StorageError``: MongoDB refused.

    An event that cannot be decoded, as one of a later ADK or one that ``after_load``
    fails on, is an ``appended`` change whose ``event`` is None. A session ``created``
    with such state has no ``state_delta``, and such state of an app or a user is left
    out. A warning in the log has the reason; ``get_session`` raises it.
    """

    def __init__(
        self, feeds: Feeds, scope: Scope, max_bytes: int, *, partials: bool
    ) -> None:
        self.scope = scope
        self._feeds = feeds
        self._max_bytes = max_bytes
        self._wants_partials = partials
        self._turns = TurnFilters() if partials else None
        self._inbox: Inbox | None = None
        self._since = NO_TIME
        self._has_begun = self._is_closed = False

    @property
    def _opened_inbox(self) -> Inbox:
        """The queue that the feed puts changes into."""
        if self._inbox is None:
            message = "Open a subscription with 'async with' before reading from it."
            raise RuntimeError(message)
        return self._inbox

    @property
    def last_revision(self) -> int | None:
        """The session's revision as delivered so far; None for other subscriptions."""
        return None

    @property
    def place(self) -> str | None:
        """Where a later subscription of the session goes on: its ``after_revision``.

        It names the revision, what was received of a running turn, and the session's
        creation. None before the first change, and for other subscriptions.
        """
        return None

    async def __aenter__(self) -> Self:
        if self._has_begun:
            message = "A subscription can be opened only once; call watch() again."
            raise RuntimeError(message)
        self._has_begun = True
        try:
            await self._catch_up()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it at once, for a reader that is waiting as well."""
        self._is_closed = True
        if self._inbox is not None:
            self._inbox.end(at_once=True)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while change := await self._next_change():
            if self._turns is None or self._turns.admit(change):
                return change
        raise StopAsyncIteration

    async def _catch_up(self) -> None:
        backend = await self._feeds.backends.backend()
        await self._open_inbox(backend)
        self._since = await backend.storage.latest_time(patient=True)

    async def _open_inbox(self, backend: Backend) -> Timestamp:
        """Receive in a new inbox every change after the returned time."""
        feed = backend.part(Feed, backend, self._feeds.counters)
        opened, since = await feed.open_inbox(
            self.scope, self._max_bytes, partials=self._wants_partials
        )
        before, self._inbox = self._inbox, opened
        if before is not None:
            before.end(at_once=True)
        if self._is_closed:
            opened.end(at_once=True)
        return since

    async def _next_change(self) -> Change | None:
        """Return the next change after the starting point; None if some were missed."""
        inbox = self._opened_inbox
        try:
            record = await inbox.take()
            while record is not None and record.cluster_time <= self._since:
                record = await inbox.take()
        except SlowSubscriberError:
            raise SlowSubscriberError(self.last_revision, self.place) from None
        return record.readable_change if record else None


class SessionSubscription(Subscription):
    """The changes of one session, and of the state it shares with others.

    It either catches up, from storage, or follows, from the inbox. If a revision is
    missing from the inbox, it catches up again.
    """

    def __init__(
        self,
        feeds: Feeds,
        key: SessionKey,
        after: Place,
        max_bytes: int,
        *,
        partials: bool,
    ) -> None:
        super().__init__(feeds, Scope(*key), max_bytes, partials=partials)
        self._key = key
        self._turn = TurnFilter(*(after.partial or (0, 0)))
        self._revision, self._partial, self._create_time = after
        self.is_of_successor = False
        """Whether the session was made anew since the place it was to go on after."""
        self._waiting: deque[Change] = deque()
        self._is_following = False
        self._is_gone = False

    @property
    def last_revision(self) -> int | None:
        """The session's revision as delivered so far; None before the first change."""
        return self._revision

    @property
    def place(self) -> str | None:
        """Where a later subscription goes on; None before the first change."""
        if self._revision is None:
            return None
        return Place(self._revision, self._partial, self._create_time).text

    async def __anext__(self) -> Change:
        while not self._is_closed:
            if self._waiting:
                return self._deliver(self._waiting.popleft())
            if self._is_gone:
                break
            if self._is_following:
                await self._queue_next()
            elif self._opened_inbox.has_feed_ended:
                break  # by the service, which must not be reopened
            else:
                await self._catch_up()
        raise StopAsyncIteration

    async def _queue_next(self) -> None:
        """Queue the next change of the inbox, unless it is known or too far ahead."""
        change = await self._next_change()
        if change is None:
            self._is_following = False
        elif change.turn is not None:
            is_own = change.turn.session_create_time in {None, self._create_time}
            self._waiting += [change] if is_own and self._turn.admit(change) else []
        elif change.kind != "appended":
            self._waiting.append(change)
        else:
            ahead = (change.revision or 0) - self._delivered_revision
            self._is_following = ahead <= 1
            self._waiting += [change] if ahead == 1 else []

    def _deliver(self, change: Change) -> Change:
        if change.revision is not None:
            self._revision = change.revision
        if change.turn is not None and change.turn_position is not None:
            self._partial = (change.turn.epoch, change.turn_position)
        self._is_gone = change.kind == "deleted"
        if self._wants_partials and change.kind == "appended" and change.event:
            self._turn.add_stored([change.event.id])
        return change

    @property
    def _delivered_revision(self) -> int:
        return -1 if self._revision is None else self._revision

    async def _catch_up(self) -> None:
        """Queue what was missed, and follow if that is complete."""
        is_opening = self._inbox is None
        backend = await self._feeds.backends.backend()
        # A new inbox: the old one may have overflowed with what is read here.
        since = await self._open_inbox(backend)
        partial = self._turn.received if self._wants_partials else None
        after = Place(self._revision, partial, self._create_time)
        view = await load_view(backend.storage, self._key, after, since)
        if self._is_closed:
            return
        if view is None and is_opening:
            raise session_not_found_error(self._key.session_id)
        if view is None or self._create_time not in {None, view.session.created}:
            deleted = ChangeRecord("deleted", self._key, {}, platform_time.get_time())
            self._waiting.append(deleted.change())
            if view is None or not is_opening:
                return
            self.is_of_successor = True
            self._revision, self._partial, self._turn = None, None, TurnFilter()
        elif is_opening:
            self._check_place(view)
        self._create_time = view.session.created
        self._continue_from(view)

    def _check_place(self, view: View) -> None:
        if self._delivered_revision > view.session.revision:
            message = (
                f"after_revision is {self._revision}, but the session is at revision"
                f" {view.session.revision}. Leave it out to begin with a snapshot."
            )
            raise InvalidInputError(message)
        if self._revision is not None and self._revision < view.session.begins:
            raise TrimmedError(view.session.begins)

    def _continue_from(self, view: View) -> None:
        self._waiting.extend(view.missed)
        if view.is_complete:
            if self._wants_partials:
                self._turn.skip_turn(view.past_epoch)
                self._turn.add_stored(view.stored_ids)
                self._waiting.extend(filter(self._turn.admit, view.partials))
                if view.turn and self._since == NO_TIME:  # it has just begun
                    self._waiting.append(view.turn)
            self._since = view.as_of
            self._is_following = True
