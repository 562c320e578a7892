"""The service's methods that push: live subscriptions, and waiting for state."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

from google.adk.errors.session_not_found_error import SessionNotFoundError
from typing_extensions import override

from mongo_session_service.changes.routing import Scope
from mongo_session_service.consumers.consumer import Consumer
from mongo_session_service.consumers.coordinator import OnHistoryLost, Start
from mongo_session_service.consumers.status import ConsumerStatus, all_consumers
from mongo_session_service.driver.uri import Target
from mongo_session_service.errors import InvalidInputError, MongoSessionServiceError
from mongo_session_service.feed.feed import Feed
from mongo_session_service.feed.stats import FeedStats, observe
from mongo_session_service.feed.subscription import SessionSubscription, Subscription
from mongo_session_service.lifecycle import Lifecycle
from mongo_session_service.model.records import session_key
from mongo_session_service.model.validation import (
    check_callable,
    check_choice,
    check_id,
    check_revision,
    check_seconds,
)
from mongo_session_service.telemetry import traced

State = dict[str, Any]


class Watching(Lifecycle):
    """What a service tells of, without being asked again."""

    def __init__(self, uri: str | None, client: Any, target: Target) -> None:
        super().__init__(uri, client, target)
        closer = None if uri is None else self._clients.close_here
        self._feed = Feed(self._opened, closer)
        self._consumers: weakref.WeakSet[Consumer] = weakref.WeakSet()
        observe(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._consumers = weakref.WeakSet()
        observe(self)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_consumers"]  # they stay where they are, and cannot be pickled
        return state

    def watch(
        self,
        app_name: str | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        after_revision: int | None = None,
    ) -> Subscription:
        """Subscribes to a session, to a user's or an app's, or to the whole database.

        A session's subscription begins with a ``snapshot`` of its merged state, then
        tells every event ``appended``, ``state`` of its user or app that others set,
        and at last ``deleted``. The others tell what happens from now on: ``created``,
        ``appended`` and ``deleted`` sessions, and ``state`` set without an event.

        Args:
            app_name: The app; None for every app.
            user_id: The user; None for every user of the app.
            session_id: The session, stripped; None for every session of the user.
            after_revision: Of a session: begin with the events after this revision
                instead, however old, then the ``state`` of its user and app as it is.

        Raises:
            InvalidInputError: the arguments name nothing that can be watched.
        """
        check_revision("after_revision", after_revision)
        if session_id is not None:
            if app_name is None or user_id is None:
                raise InvalidInputError("A session_id needs its app_name and user_id.")
            key = session_key(app_name, user_id, session_id)
            return SessionSubscription(self._feed, key, after_revision)
        if after_revision is not None:
            message = "after_revision is a session's: it needs a session_id."
            raise InvalidInputError(message)
        if user_id is not None:
            if app_name is None:
                raise InvalidInputError("A user_id needs its app_name.")
            user_id = check_id("user_id", user_id)
        if app_name is not None:
            app_name = check_id("app_name", app_name)
        return Subscription(self._feed, Scope(app_name, user_id))

    @traced
    async def wait_for(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        revision: int | None = None,
        predicate: Callable[[State], object] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  as asyncio's own waits have it
    ) -> State:
        """Returns a session's merged state once it has come so far.

        Args:
            app_name: The app.
            user_id: The user.
            session_id: The session, stripped.
            revision: Wait until the session is at this revision, or past it.
            predicate: Or until this holds of its state; called for every change, so
                that no state in between is missed.
            timeout: Seconds to wait at most; None for ever.

        Raises:
            TimeoutError: it has not come so far in time.
            SessionNotFoundError: the session is not stored, or is deleted meanwhile.
            InvalidInputError: neither a revision nor a predicate is given, one makes
                no sense, or the predicate is a coroutine function.
        """
        check_revision("revision", revision)
        check_seconds("timeout", timeout)
        if predicate is not None:
            check_callable("predicate", predicate)
        if revision is None and predicate is None:
            message = "wait_for needs a revision or a predicate to wait for."
            raise InvalidInputError(message)
        state: State = {}
        subscription = self.watch(app_name, user_id, session_id)
        change = None
        async with asyncio.timeout(timeout), subscription as changes:
            async for change in changes:
                state |= change.state_delta if change.state is None else change.state
                reached = changes.last_revision
                if revision is not None and reached is not None and reached >= revision:
                    return state
                if predicate is not None and _holds(predicate, state):
                    return state
        if change is None or change.kind != "deleted":
            raise MongoSessionServiceError("The service was closed meanwhile.")
        raise SessionNotFoundError(f"Session {session_id.strip()!r} was deleted.")

    def consumer(
        self,
        name: str,
        *,
        app_name: str | None = None,
        start: Start = "beginning",
        on_history_lost: OnHistoryLost = "raise",
    ) -> Consumer:
        """A durable consumer of all changes: they go on where ``name`` has committed.

        Args:
            name: What its checkpoint is kept under.
            app_name: The app whose changes it gets; None for all.
            start: Where a new name begins: at the ``beginning`` of the log, every
                event of which is told as ``appended`` before what happens from now on;
                or ``now``.
            on_history_lost: What to do when it was away for longer than MongoDB's
                oplog reaches back, or its collections were dropped: ``raise``
                ``HistoryLostError``; ``replay`` the log from its beginning; or
                ``skip`` to now, with a warning.

        Raises:
            InvalidInputError: an argument is none of these.
        """
        name = check_id("name", name)
        if app_name is not None:
            app_name = check_id("app_name", app_name)
        check_choice("start", start, get_args(Start))
        check_choice("on_history_lost", on_history_lost, get_args(OnHistoryLost))
        consumer = Consumer(
            self._opened, name, app_name, start=start, on_history_lost=on_history_lost
        )
        self._consumers.add(consumer)
        return consumer

    @traced
    async def consumers(self) -> list[ConsumerStatus]:
        """Returns how every consumer is doing, by name, wherever it runs.

        Raises:
            ConfigurationError: in a standalone server, and mongomock, there are none.
        """
        async with self._connected() as opened:
            return await all_consumers(opened.connection)

    def feed_stats(self) -> FeedStats:
        """How the change feed is doing; cheap enough to ask every second."""
        ages = {each.name: each.checkpoint_age for each in list(self._consumers)}
        reading = {name: age for name, age in ages.items() if age is not None}
        return replace(self._feed.stats(), checkpoint_ages=reading)

    @override
    async def close(self) -> None:
        """Ends subscriptions and consumers, and closes the clients.

        A later call opens new ones.
        """
        here = [each for each in list(self._consumers) if each.is_here]
        await asyncio.gather(*(each.end() for each in here))
        await self._feed.close()
        await super().close()


def _holds(predicate: Callable[[State], object], state: State) -> bool:
    result = predicate(state)
    if inspect.iscoroutine(result):
        result.close()
        message = "predicate must be a plain function: a coroutine is always true."
        raise InvalidInputError(message)
    return bool(result)
