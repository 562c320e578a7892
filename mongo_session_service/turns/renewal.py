"""Turn renewal: the thread that renews the turns that a service holds.

A body may block its event loop for as long as it likes: a synchronous tool does, and
ADK's ``Runner.run()``. So the turns are renewed in a thread, through a client that
belongs to no event loop. An append renews its turn as well. The client is opened for
the first turn that goes without one for long.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import ExitStack, suppress
from typing import Any, Final, Protocol

import pymongo
from pymongo import WriteConcern
from pymongo.errors import PyMongoError

from mongo_session_service.driver.connection import Connection
from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions import turns

logger = logging.getLogger(__name__)

THREAD_NAME: Final = "mongo-session-service-turns"

RENEWAL: Final = 1.5
"""Seconds after which a turn is renewed, if nothing was appended within it."""

_TICK: Final = 0.5  # seconds
_LINGER: Final = 10.0
"""Seconds that the thread stays after the last turn."""
_TOGETHER: Final = 1.5
"""Seconds to renew all turns: one of their sessions may be locked."""
_ALONE: Final = 0.2
"""Seconds to renew one of them then."""


class Held(Protocol):
    """A turn that is held."""

    key: SessionKey
    token: str
    connection: Connection
    renewed_at: float
    """When it was renewed last, on the monotonic clock."""

    @property
    def is_abandoned(self) -> bool:
        """Whether its event loop was closed under it."""


class Renewer:
    """Renews the turns that one service holds in this process."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._used_at = 0.0
        self._stopping: threading.Event | None = None
        """Ends the thread that runs; None if none does."""

    def add(self, turn: Held) -> None:
        """Renew a turn from now on."""
        if self._pid != os.getpid():  # the thread stayed in the parent
            self._reset()
        with self._lock:
            self._held[turn.token] = turn
            if self._stopping is None:
                stopping = self._stopping = threading.Event()
                threading.Thread(
                    target=self._run, args=[stopping], name=THREAD_NAME, daemon=True
                ).start()

    def discard(self, turn: Held) -> None:
        """Renew it no longer; idempotent."""
        self._held.pop(turn.token, None)

    def stop(self) -> None:
        """End the thread, unless turns are held."""
        with self._lock:
            if not self._held and self._stopping is not None:
                self._stopping.set()
                self._stopping = None

    def _run(self, stopping: threading.Event) -> None:
        with ExitStack() as closing:
            sessions = None
            while not stopping.wait(_TICK) and not self._is_over():
                if not (due := self._due()):
                    continue
                try:
                    if sessions is None:
                        sessions = _opened(due[0].connection, closing)
                    _renew(sessions, due)
                except PyMongoError as error:
                    # They may be lost, which the next append in them finds out.
                    logger.debug("No turn was renewed: %s.", type(error).__name__)
                except Exception as error:  # noqa: BLE001  a certificate's file is gone
                    # Without this thread, no turn would be renewed any more.
                    logger.warning("No turn was renewed: %s.", type(error).__name__)

    def _is_over(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if self._held:
                self._used_at = now
            elif now - self._used_at > _LINGER:
                self._stopping = None
                return True
            return False

    def _due(self) -> list[Held]:
        held = list(self._held.values())
        for each in held:
            if each.is_abandoned:
                self.discard(each)
        now = time.monotonic()
        return [each for each in held if now - each.renewed_at >= RENEWAL]


def _opened(connection: Connection, closing: ExitStack) -> Any:
    """The collection of sessions, for a thread."""
    database, close = connection.driver.blocking(connection.database)
    closing.callback(close)
    collection = database.get_collection(connection.sessions.name)
    # The next renewal comes soon enough, if a failover loses one.
    return collection.with_options(write_concern=WriteConcern(1))


def _renew(sessions: Any, held: list[Held]) -> None:
    try:
        _renew_together(sessions, held, _TOGETHER)
    except PyMongoError as error:
        if not error.timeout or len(held) == 1:
            raise
        for each in held:
            with suppress(PyMongoError):
                _renew_together(sessions, [each], _ALONE)


def _renew_together(sessions: Any, held: list[Held], limit: float) -> None:
    started = time.monotonic()
    ids = [each.key.id for each in held]
    where = {
        # By equality, a mongos knows the shard.
        "_id": ids[0] if len(ids) == 1 else {"$in": ids},
        "turn.holder.token": {"$in": [each.token for each in held]},
    }
    with pymongo.timeout(limit):
        sessions.update_many(where, turns.RENEW)
    for each in held:
        each.renewed_at = started
