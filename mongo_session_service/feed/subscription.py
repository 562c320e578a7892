"""Live subscriptions: what one reader sees of the feed, without gap or repetition."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from bson.timestamp import Timestamp
from google.adk.platform import time as platform_time

from mongo_session_service.changes.change import Change
from mongo_session_service.changes.decoder import Appended
from mongo_session_service.changes.routing import Scope
from mongo_session_service.codec.documents import (
    check_session,
    decode_shared_state,
    decode_state,
)
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.authorization import naming_privileges
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.errors import translated
from mongo_session_service.driver.retry import persistently
from mongo_session_service.errors import InvalidInputError, SlowSubscriberError
from mongo_session_service.feed.expiry import Alarm, load_end
from mongo_session_service.feed.inbox import CAPACITY, MISSED, Inbox, Notice
from mongo_session_service.model import scopes
from mongo_session_service.model.records import Marker, SessionKey
from mongo_session_service.model.scopes import ScopedState
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.event_log import read_page
from mongo_session_service.sessions.queries import Wanted
from mongo_session_service.sessions.store import not_found

if TYPE_CHECKING:
    from mongo_session_service.feed.feed import Feed


@dataclass(frozen=True, slots=True)
class View:
    """A session, and its events after a revision: a page of them, if it is full."""

    at: Timestamp
    key: SessionKey
    marker: Marker
    update_time: float
    expire_time: float | None
    scopes: ScopedState
    appended: list[Change]
    is_complete: bool
    """Whether there are no more events than these."""

    def snapshot(self) -> Change:
        """The whole merged state, as a change."""
        return Change(
            kind="snapshot",
            **self.key.id,
            revision=self.marker.revision,
            state=scopes.merge(self.scopes),
            time=self.update_time,
        )

    def shared_state(self) -> list[Change]:
        """State of the app and the user, as changes to who may have missed some."""
        app_name, user_id, _ = self.key
        app = scopes.merge(ScopedState(app=self.scopes.app))
        user = scopes.merge(ScopedState(user=self.scopes.user))
        return [
            Change(
                kind="state",
                app_name=app_name,
                user_id=owner,
                state_delta=delta,
                time=self.update_time,
            )
            for owner, delta in ((None, app), (user_id, user))
            if delta
        ]


async def load_view(
    connection: Connection,
    key: SessionKey,
    *,
    after_revision: int | None,
    not_before: Timestamp,
) -> View | None:
    """A session with its events after a revision, or with none; None if not stored."""
    stored = {"_id": key.id, **queries.visible(platform_time.get_time())}
    stages = queries.union(
        connection,
        Wanted("sessions", stored),
        *queries.shared_state(key.app_name, key.user_id),
    )
    found = await snapshots.snapshot(
        connection, connection.sessions, stages, not_before=not_before
    )
    session = next((each for each in found.documents if _is_session(each)), None)
    if session is None:
        return None
    check_session(session)
    hooks = connection.hooks
    shared = decode_shared_state(key, found.documents, hooks)
    own = decode_state(session["state"], Owner.of_session(key), hooks)
    appended, is_complete = (
        ([], True)
        if after_revision is None
        else await _load_appended(connection, key, after_revision, found.at)
    )
    return View(
        at=found.at,
        key=key,
        marker=Marker.of(session),
        update_time=session["update_time"],
        expire_time=session.get("expire_time"),
        scopes=ScopedState(shared.app, shared.user, own),
        appended=appended,
        is_complete=is_complete,
    )


async def _load_appended(
    connection: Connection, key: SessionKey, after_revision: int, at: Timestamp
) -> tuple[list[Change], bool]:
    """A page of a session's events, and whether it is the last."""
    page = await read_page(connection, queries.events_after(key, after_revision), at=at)
    appended = [Appended(key, each, connection.hooks).change() for each in page.events]
    return appended, page.is_last


def _is_session(document: dict[str, Any]) -> bool:
    id_ = document["_id"]
    return isinstance(id_, dict) and "session_id" in id_


_THE_BEGINNING: Final = Timestamp(0, 0)


class Subscription:
    """Changes as they are committed: an async context manager and iterator.

    ::

        async with service.watch("my_app", "ada", "monday") as changes:
            async for change in changes:
                print(change.kind, change.state_delta)

    Each change is told once, in the order of commit. The subscription ends after
    ``deleted``, when it is closed, and when the service is. A cancelled reader loses
    nothing: the next ``anext()`` goes on where it was.

    Opening raises ``SessionNotFoundError``, ``InvalidInputError`` for an
    ``after_revision`` the session has not reached, and what any call of the service
    may. Reading raises:

    - ``SlowSubscriberError``: it was read too slowly; go on after its
      ``last_revision``.
    - ``HistoryLostError``: MongoDB cannot tell what comes next, or what was watched
      was dropped. In the first case a session's subscription reads on from storage
      instead, and does not raise.
    - ``StorageUnavailableError``: MongoDB has been away for a minute.
    - ``StorageError``: MongoDB refused, or holds an event this ADK cannot read.
    """

    def __init__(self, feed: Feed, scope: Scope) -> None:
        self.scope = scope
        self._feed = feed
        self._inbox: Inbox | None = None
        self._since = _THE_BEGINNING
        self._is_closed = False

    @property
    def inbox(self) -> Inbox:
        """Where the feed leaves what is to be read."""
        if self._inbox is None:
            message = "Open a subscription with 'async with' before reading from it."
            raise RuntimeError(message)
        return self._inbox

    @property
    def last_revision(self) -> int | None:
        """The session's revision as told so far; None for other subscriptions."""
        return None

    async def __aenter__(self) -> Self:
        if self._inbox is not None:
            message = "A subscription is opened once; call watch() for another."
            raise RuntimeError(message)
        self._inbox = Inbox(self._feed.doorbell(), CAPACITY)
        try:
            with translated():
                await self._begin()
        except BaseException:
            self.close()
            raise
        if self._is_closed:
            self._feed.detach(self)
            self._inbox.end(None)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it at once: who is reading from it sees its end."""
        if not self._is_closed:
            self._is_closed = True
            self._feed.detach(self)
            if self._inbox is not None:
                self._inbox.clear()
                self._inbox.end(None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        change = (await self._next_notice()).change
        if change is None:
            raise StopAsyncIteration
        return change

    async def _begin(self) -> None:
        """Have all that is committed from now on told."""
        await self._feed.attach(self)
        connection = await self._feed.connection()
        self._since = await persistently(lambda: snapshots.now(connection))

    async def _next_notice(self) -> Notice:
        """The next of what the starting point does not show.

        Raises:
            StopAsyncIteration: there will be no more.
        """
        try:
            while (notice := await anext(self.inbox)).at <= self._since:
                pass
        except SlowSubscriberError:
            raise SlowSubscriberError(self.last_revision) from None
        return notice


class SessionSubscription(Subscription):
    """The changes of one session, and of the state it shares with others.

    It is either catching up, from storage, or following, from the inbox. A revision
    that is missing in what it follows makes it catch up again.
    """

    def __init__(self, feed: Feed, key: SessionKey, after_revision: int | None) -> None:
        super().__init__(feed, Scope(*key))
        self._key = key
        self._revision = after_revision
        self._create_time: float | None = None
        self._waiting: deque[Change] = deque()
        self._alarm = Alarm()
        self._is_following = False
        self._is_gone = False

    @property
    def last_revision(self) -> int | None:
        """The session's revision as told so far; None if nothing was."""
        return self._revision

    async def __anext__(self) -> Change:
        while not self._is_closed:
            if self._waiting:
                return self._told(self._waiting.popleft())
            if self._is_gone:
                break
            if not self._is_following:
                if self.inbox.is_closed:
                    break  # by the service: it is not to be opened again
                with translated():
                    await self._catch_up()
                continue
            if self._alarm.has_rung:
                with translated():
                    await self._look_at_the_clock()
                continue
            notice = await self._next_notice()
            change = notice.change
            if notice is MISSED or (change is not None and self._is_ahead(change)):
                self._is_following = False
            elif change is None:
                self._alarm.has_rung = True
            elif not self._is_known(change):
                return self._told(change)
        raise StopAsyncIteration

    def close(self) -> None:
        """End it at once: who is reading from it sees its end."""
        self._alarm.cancel()
        super().close()

    async def _look_at_the_clock(self) -> None:
        """Tell that the session has expired, or wait until it will."""
        key, create_time = self._key, self._create_time or 0.0
        connection = await self._feed.connection()
        expire_time, revision = await load_end(connection, key, create_time)
        if self._is_closed or not self._alarm.set(expire_time, self.inbox):
            return
        if revision > self._told_up_to:
            self._alarm.postpone(self.inbox)  # what was appended is told before
        else:
            self._tell_that_it_is_gone()

    def _tell_that_it_is_gone(self) -> None:
        gone = Change(kind="deleted", **self._key.id, time=time.time())
        self._waiting.append(gone)

    def _told(self, change: Change) -> Change:
        if change.revision is not None:
            self._revision = change.revision
        self._is_gone = change.kind == "deleted"
        if self._is_gone:
            self._alarm.cancel()
        return change

    def _is_ahead(self, change: Change) -> bool:
        return change.kind == "appended" and _revision(change) > self._told_up_to + 1

    def _is_known(self, change: Change) -> bool:
        return change.kind == "appended" and _revision(change) <= self._told_up_to

    @property
    def _told_up_to(self) -> int:
        return -1 if self._revision is None else self._revision

    async def _begin(self) -> None:
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Have what was missed wait to be read; follow, if that is all."""
        # A new one, since the old may have overflowed with what is read here instead.
        self._inbox = Inbox(self._feed.doorbell(), CAPACITY)
        position = await self._feed.attach(self)
        connection = await self._feed.connection()
        async with naming_privileges(connection):
            view = await persistently(
                lambda: load_view(
                    connection,
                    self._key,
                    after_revision=self._revision,
                    not_before=position,
                )
            )
        if self._is_closed:
            self._feed.detach(self)
        elif self._create_time is None:
            self._start_from(view)
        elif view is None or view.marker.create_time != self._create_time:
            self._tell_that_it_is_gone()
        else:
            self._continue_from(view)

    def _start_from(self, view: View | None) -> None:
        if view is None:
            raise not_found(self._key.session_id)
        if self._told_up_to > view.marker.revision:
            message = (
                f"after_revision is {self._revision}, but the session is at revision"
                f" {view.marker.revision}. Watch it from a snapshot, without."
            )
            raise InvalidInputError(message)
        self._create_time = view.marker.create_time
        if self._revision is None:
            self._waiting.append(view.snapshot())
            self._follow(view)
        else:
            self._continue_from(view)

    def _continue_from(self, view: View) -> None:
        self._waiting.extend(view.appended)
        if view.is_complete:
            self._waiting.extend(view.shared_state())
            self._follow(view)

    def _follow(self, view: View) -> None:
        self._since = view.at
        self._is_following = True
        self._alarm.set(view.expire_time, self.inbox)


def _revision(change: Change) -> int:
    return -1 if change.revision is None else change.revision
