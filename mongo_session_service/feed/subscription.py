"""Subscriptions: what one reader receives of the feed, without gap or duplicate."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from bson.timestamp import Timestamp
from google.adk.platform import time as platform_time

from mongo_session_service._public import public
from mongo_session_service.changes.change import Change
from mongo_session_service.changes.decoder import decode_turn_progress
from mongo_session_service.changes.record import (
    ChangeRecord,
    readable_change,
    updated_record,
)
from mongo_session_service.changes.routing import Scope
from mongo_session_service.codec import documents
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.driver import oplog
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.snapshots import (
    NO_TIME,
    Query,
    load_documents,
    read_snapshot,
)
from mongo_session_service.errors import (
    InvalidInputError,
    SlowSubscriberError,
    StorageError,
    TrimmedError,
    session_not_found_error,
)
from mongo_session_service.feed.feed import Feed
from mongo_session_service.feed.heard_turns import HeardTurn, HeardTurns
from mongo_session_service.feed.inbox import Inbox, Notification
from mongo_session_service.model import scopes
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import Document, Marker, SessionKey
from mongo_session_service.model.scopes import ScopedState
from mongo_session_service.sessions import event_log, queries

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class View:
    """A session at one point in time, and what a subscriber to it has missed."""

    as_of: Timestamp
    marker: Marker
    missed: list[Change]
    is_complete: bool
    """Whether these are all; else they are a page of the session's events."""
    log_begins: int
    """The revision after which the session's log begins."""
    past_epoch: int = 0
    """The epoch of the latest turn that is over."""
    said: Sequence[Change] = ()
    """Changes that tell what the running turn has said and noted, and not stored."""
    stored_ids: Sequence[str] = ()
    """The ids of the events that it has stored."""


async def load_view(
    connection: Connection,
    key: SessionKey,
    after_revision: int | None,
    not_before: Timestamp,
    *,
    with_partials: bool,
) -> View | None:
    """Load a session and what a subscriber has missed; None if it is not stored.

    What follows a revision from before the session's log begins with a snapshot.
    """
    stored = {"_id": key.id, **queries.visible_filter(connection.clock.now())}
    shared = queries.shared_state_queries(key.app_name, key.user_id)
    found = await read_snapshot(
        connection, Query("sessions", stored), *shared, not_before=not_before
    )
    heads = await found.documents()
    session = next((it for it in heads if it["_id"] == key.id), None)
    if session is None:
        return None
    documents.checked_key(session)
    hooks, update_time = connection.hooks, session["update_time"]
    begins = documents.log_begins(session)
    if after_revision is None:
        shared_state = documents.decode_shared_state(key, heads, hooks)
        own = documents.decode_session_state(session, key, hooks)
        snapshot = Change(
            kind="snapshot",
            **key.id,
            revision=session["revision"],
            state=scopes.merge(ScopedState(shared_state.app, shared_state.user, own)),
            time=update_time,
        )
        missed, is_complete = [snapshot], True
    else:
        missed = []
        if after_revision < begins:
            missed = [await _snapshot_at_cut(connection, key, heads, found.as_of)]
            after_revision = begins
        following = queries.events_after(key, after_revision)
        page = await event_log.read_page(connection, following, as_of=found.as_of)
        missed += _appended_changes(key, page.events, hooks)
        is_complete = page.is_last
        if is_complete:
            missed += _shared_state_changes(key, heads, hooks, update_time)
            details = Details.from_document(session)
            if "title" in session or details.labels:  # an empty title was removed
                updated = updated_record(key, session, update_time, hooks)
                missed.append(updated.change())
    view = View(found.as_of, Marker.of(session), missed, is_complete, begins)
    if with_partials and is_complete:
        return await _with_turn(connection, key, session, view)
    return view


def _appended_changes(
    key: SessionKey, events: Iterable[Document], hooks: Hooks
) -> list[Change]:
    records = (
        ChangeRecord("appended", key, {"document": each}, hooks=hooks)
        for each in events
    )
    return [each for each in map(readable_change, records) if each]


async def _with_turn(
    connection: Connection, key: SessionKey, session: dict[str, Any], view: View
) -> View:
    """Add to a view what the turn of the session has said."""
    turn = session.get("turn") or {}
    if "holder" not in turn:
        return replace(view, past_epoch=turn.get("epoch", 0))
    wanted = [Query("partials", queries.partials_of_turn(key, turn["epoch"]), order=1)]
    if "first_revision" in turn:
        own = queries.events_after(key, turn["first_revision"] - 1)
        wanted.append(Query("events", own, fields=("event.id",)))
    read = await load_documents(connection, *wanted, as_of=view.as_of)
    stored_ids = [each["event"]["id"] for each in read if "n" not in each["_id"]]
    stored = {*stored_ids}
    items = [decode_turn_progress(each, connection.hooks) for each in read]
    changes = [readable_change(each) for each in items if each]
    said = [
        each
        for each in changes
        if each and (each.event is None or each.event.id not in stored)
    ]
    past_epoch = turn["epoch"] - 1
    return replace(view, past_epoch=past_epoch, said=said, stored_ids=stored_ids)


async def _snapshot_at_cut(
    connection: Connection,
    key: SessionKey,
    heads: list[dict[str, Any]],
    as_of: Timestamp,
) -> Change:
    where = {"_id": key.event_id(0)}
    page = await event_log.read_page(connection, where, as_of=as_of)
    (beginning,) = page.events
    content = {"document": beginning, "shared": heads}
    return ChangeRecord("snapshot", key, content, hooks=connection.hooks).change()


def _shared_state_changes(
    key: SessionKey, stored: list[dict[str, Any]], hooks: Hooks, time: float
) -> list[Change]:
    """List state of the app and the user as changes that may have been missed."""
    app_name, user_id, _ = key
    try:
        shared = documents.decode_shared_state(key, stored, hooks)
    except StorageError as error:
        logger.warning("A subscriber does not receive shared state. %s", error)
        return []
    app, user = ScopedState(app=shared.app), ScopedState(user=shared.user)
    return [
        Change(
            kind="state", app_name=app_name, user_id=owner, state_delta=delta, time=time
        )
        for owner, part in ((None, app), (user_id, user))
        if (delta := scopes.merge(part))
    ]


@public
class Subscription:
    """Changes as they are committed: an async context manager and iterator.

    ::

        async with service.watch("my_app", "ada", "monday") as changes:
            async for change in changes:
                print(change.kind, change.state_delta)

    Each change is delivered once, in the order of commit. The subscription ends after
    ``deleted``, when it is closed, and when the service is closed. A cancelled reader
    loses nothing: the next ``anext()`` resumes where it was.

    Opening raises ``SessionNotFoundError``, ``InvalidInputError`` for an
    ``after_revision`` the session has not reached, and the errors of every call of the
    service. Reading raises:

    - ``SlowSubscriberError``: it was read too slowly; resume after the error's
      ``last_revision``.
    - ``HistoryLostError``: the change stream cannot be resumed, or the watched
      collections were dropped. In the first case a session's subscription continues
      from storage instead, and does not raise.
    - ``StorageUnavailableError``: MongoDB has been unreachable for a minute.
    - ``StorageError``: MongoDB refused.

    An event that cannot be decoded, as one of a later ADK or one that ``after_load``
    fails on, is an ``appended`` change whose ``event`` is None. A session ``created``
    with such state has no ``state_delta``, and such state of an app or a user is left
    out. A warning in the log says why; ``get_session`` raises it.
    """

    def __init__(
        self, feed: Feed, scope: Scope, max_bytes: int, *, partials: bool
    ) -> None:
        self.scope = scope
        self._feed = feed
        self._max_bytes = max_bytes
        self._wants_partials = partials
        self._turns = HeardTurns() if partials else None
        self._inbox: Inbox | None = None
        self._since = NO_TIME
        self._has_begun = self._is_closed = False

    @property
    def inbox(self) -> Inbox:
        """The queue that the feed puts changes into."""
        if self._inbox is None:
            message = "Open a subscription with 'async with' before reading from it."
            raise RuntimeError(message)
        return self._inbox

    @property
    def last_revision(self) -> int | None:
        """The session's revision as delivered so far; None for other subscriptions."""
        return None

    async def __aenter__(self) -> Self:
        if self._has_begun:
            message = "A subscription can be opened only once; call watch() again."
            raise RuntimeError(message)
        self._has_begun = True
        try:
            await self._begin()
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
            self._inbox.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while change := (await self._next_notification()).change:
            if self._turns is None or self._turns.is_news(change):
                return change
        raise StopAsyncIteration

    async def _begin(self) -> None:
        await self._open_inbox()
        async with self._feed.opener() as backend:
            connection = backend.connection
            self._since = await connection.retry(oplog.latest_time, connection)

    async def _open_inbox(self) -> Timestamp:
        """Receive in a new inbox every change after the returned time."""
        opened, position = await self._feed.open_inbox(
            self.scope, self._max_bytes, wants_partials=self._wants_partials
        )
        before, self._inbox = self._inbox, opened
        if before is not None:
            before.close()
        if self._is_closed:
            opened.close()
        return position

    async def _next_notification(self) -> Notification:
        """Return the next notification that is later than the starting point."""
        inbox = self.inbox
        try:
            notification = await inbox.next_notification()
            while notification.cluster_time <= self._since:
                notification = await inbox.next_notification()
        except SlowSubscriberError:
            raise SlowSubscriberError(self.last_revision) from None
        return notification


class SessionSubscription(Subscription):
    """The changes of one session, and of the state it shares with others.

    It either catches up, from storage, or follows, from the inbox. If a revision is
    missing from the inbox, it catches up again.
    """

    def __init__(
        self,
        feed: Feed,
        key: SessionKey,
        after_revision: int | None,
        max_bytes: int,
        *,
        partials: bool,
        after_partial: tuple[int, int] | None,
    ) -> None:
        super().__init__(feed, Scope(*key), max_bytes, partials=partials)
        self._key = key
        self._turn = HeardTurn(*(after_partial or (0, 0)))
        self._revision = after_revision
        self._create_time: float | None = None
        self._waiting: deque[Change] = deque()
        self._is_following = False
        self._is_gone = False

    @property
    def last_revision(self) -> int | None:
        """The session's revision as delivered so far; None before the first change."""
        return self._revision

    async def earlier(self, before_revision: int) -> AsyncGenerator[list[Change]]:
        """Yield the session's events before a revision in pages, the latest first."""
        wanted = event_log.LogRange(before=before_revision, newest_first=True)
        pages: AsyncGenerator[list[Document]] | None = None
        while True:
            async with self._feed.opener() as backend:
                connection, created = backend.connection, self._create_time
                pages = pages or event_log.read_log(
                    connection, self._key, wanted, created=created
                )
                page = await anext(pages, None)
            if page is None:
                return
            yield _appended_changes(self._key, page, connection.hooks)

    @property
    def is_following(self) -> bool:
        """Tell whether the next change comes from the feed, not from storage."""
        return self._is_following and not self._waiting

    @property
    def has_page(self) -> bool:
        """Tell whether the next change is here, from storage or from the feed."""
        return bool(self._waiting)

    async def __anext__(self) -> Change:
        while not self._is_closed:
            if self._waiting:
                return self._deliver(self._waiting.popleft())
            if self._is_gone:
                break
            if not self._is_following and self.inbox.has_feed_ended:
                break  # by the service, which must not be reopened
            if self._is_following:
                await self._queue_next()
            else:
                await self._catch_up()
        raise StopAsyncIteration

    async def _queue_next(self) -> None:
        """Queue the next change of the inbox, unless it is known or too far ahead."""
        change = (await self._next_notification()).change
        if change is None:
            self._is_following = False
        elif change.kind in {"partial", "turn"}:
            self._waiting += [change] if self._turn.is_news(change) else []
        elif change.kind != "appended":
            self._waiting.append(change)
        else:
            ahead = (change.revision or 0) - self._delivered_revision
            self._is_following = ahead <= 1
            self._waiting += [change] if ahead == 1 else []

    def _deliver(self, change: Change) -> Change:
        if change.revision is not None:
            self._revision = change.revision
        self._is_gone = change.kind == "deleted"
        if change.kind == "appended" and change.event is not None:
            self._turn.note_stored([change.event.id])
        return change

    @property
    def _delivered_revision(self) -> int:
        return -1 if self._revision is None else self._revision

    async def _begin(self) -> None:
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Queue what was missed, and follow if that is complete."""
        # A new inbox: the old one may have overflowed with what is read here.
        position = await self._open_inbox()
        async with self._feed.opener() as backend:
            connection = backend.connection
            view = await connection.retry(
                load_view,
                connection,
                self._key,
                self._revision,
                position,
                with_partials=self._wants_partials,
            )
        if self._is_closed:
            return
        if self._create_time is None:
            self._start_from(view)
        elif view is None or view.marker.create_time != self._create_time:
            now = platform_time.get_time()
            self._waiting.append(Change(kind="deleted", **self._key.id, time=now))
        else:
            self._continue_from(view)

    def _start_from(self, view: View | None) -> None:
        if view is None:
            raise session_not_found_error(self._key.session_id)
        if self._delivered_revision > view.marker.revision:
            message = (
                f"after_revision is {self._revision}, but the session is at revision"
                f" {view.marker.revision}. Leave it out to begin with a snapshot."
            )
            raise InvalidInputError(message)
        if self._revision is not None and self._revision < view.log_begins:
            raise TrimmedError(view.log_begins)
        self._create_time = view.marker.create_time
        self._continue_from(view)

    def _continue_from(self, view: View) -> None:
        self._waiting.extend(view.missed)
        if view.is_complete:
            self._turn.note_over(view.past_epoch)
            self._turn.note_stored(view.stored_ids)
            self._waiting.extend(filter(self._turn.is_news, view.said))
            self._since = view.as_of
            self._is_following = True
