"""Stream: the database's changes, resumed after any failure that allows it.

A server without an oplog, such as a standalone or mongomock, has none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from copy import copy
from typing import Any, Final

import pymongo
from bson.timestamp import Timestamp
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from mongo_session_service.errors import (
    ConfigurationError,
    HistoryLostError,
)
from mongo_session_service.model.records import Document
from mongo_session_service.storage.clients import (
    Driver,
    current_cursor,
    is_buffering,
)
from mongo_session_service.storage.database import Database, kill_client_session
from mongo_session_service.storage.failures import (
    gave_up_error,
    is_transient,
    pauses,
    renew_connections,
    translate_error,
)
from mongo_session_service.storage.tasks import (
    ReraisedCancellation,
    background,
    uninterrupted,
)

logger = logging.getLogger(__name__)

_MAJORITY: Final = ReadConcern("majority")


@asynccontextmanager
async def open_change_stream(
    database: Database, pipeline: list[dict[str, Any]], **options: Any
) -> AsyncIterator[Any]:
    """Open a change stream of the database.

    This is one generator, with none in it: the event loop finishes it if the garbage
    collector finds it, as where a loop that reads was dropped.
    """
    majority = database.database.with_options(read_concern=_MAJORITY)
    async with await database.start_session() as session:
        with database.in_use.using(session):
            try:
                watch = majority.watch(pipeline, session=session, **options)
                stream = await database.driver.open_cursor(watch)
                try:
                    yield stream
                finally:
                    await stream.close()
            except asyncio.CancelledError:  # the cursor's id may be unknown
                await uninterrupted(kill_client_session(session))
                raise


_SEARCH: Final = 3600.0
"""Seconds for a stream that is behind: a server does not reply while it searches its
oplog, at some 100,000 entries a second. The driver notices if it dies meanwhile."""
_RECENT: Final = 60.0  # seconds
_CLOSING_SECONDS: Final = 2.0
"""Seconds to close the server's cursor, which may be in use for one."""
_FEW_CONNECTIONS: Final = 8
"""A pool of so many may have none to spare for a stream that waits on the server."""
_POLL: Final = 0.05
"""Seconds without a connection before each request of a stream in such a pool."""
_TOO_LARGE: Final = 10334
_LOST: Final = {
    9: "the resume token is malformed",
    15: "the resume token is malformed",
    260: "the resume token is no longer valid",
    280: "the change stream cannot be resumed",
    286: "MongoDB's oplog does not reach back that far",
    40647: "the resume token is malformed",
    40649: "the resume token is malformed",
}


class Stream:
    """The changes of a database after one point in its history, in order.

    For one reader. After a cancelled call, the next one resumes where it was.
    """

    def __init__(
        self,
        database: Database,
        pipeline: list[Document],
        start: Timestamp | Document,
        *,
        slim: list[Document],
        needs_document: Callable[[Document], bool],
    ) -> None:
        """Open nothing yet: the first call does.

        ``start`` is a time on the deployment's clock, or a resume token. A change that
        is too large for a reply is read by the ``slim`` pipeline, without its content.
        Where a change ``needs_document``, that is read as it is now.
        """
        self._database = database
        self._opened = copy(database)
        """The database with the client that the stream is, or will be, open in."""
        self._pipeline, self._slim_pipeline = pipeline, slim
        self._needs_document = needs_document
        self._start = start
        most = database.client.options.pool_options.max_pool_size
        self._is_polling = bool(most) and most <= _FEW_CONNECTIONS
        self._slim = False
        self._change_stream: Any = None
        self._exits = AsyncExitStack()
        self._cursor: object = None
        self._thread: asyncio.Task[Document | None] | None = None
        self._is_level = False
        self.reopened = 0
        """How often it failed and was reopened."""

    @property
    def token(self) -> Document | None:
        """The resume token of this position; None before the first reply."""
        return None if isinstance(self._start, Timestamp) else self._start

    @property
    def has_more(self) -> bool:
        """True if the next change is here already, as far as the driver knows."""
        return is_buffering(self._cursor)

    async def next_change(self) -> Document | None:
        """Return the next change; None if there was none for a second, or less.

        HistoryLostError if the stream cannot be resumed, StorageUnavailableError once
        it has failed for ``RETRY_LIMIT`` seconds in a row.
        """
        waiting = pauses()
        if self._opened.client is not self._database.client:
            await self.close_cursor()
            self._opened = copy(self._database)
        while True:
            try:
                return await self._opened.with_client(self._read)
            except (PyMongoError, TimeoutError) as error:
                is_too_large = getattr(error, "code", None) == _TOO_LARGE
                if is_too_large and not self._slim:
                    self._slim = True  # which leaves the next change's content out
                else:
                    check_stream(error)
                    pause = next(waiting, None)
                    if pause is None:
                        raise gave_up_error(error, self._database.client) from None
                    logger.debug("The change stream failed: %s.", type(error).__name__)
                    await asyncio.sleep(pause)
                self.reopened += 1

    async def _read(self, _: Database) -> Document | None:
        silence = self._opened.limits.stream_silence_seconds
        limit = silence if self._is_level else _SEARCH
        try:
            # Not within those of the URI: a server holds a request that waits.
            with ReraisedCancellation(), pymongo.timeout(limit):
                change = await self._try_next(limit)
        except BaseException as error:
            if isinstance(error, PyMongoError):
                await renew_connections(self._opened.client, error)
            # A change that was read but not returned is read again.
            await self.close_cursor()
            raise
        age = time.time() - change["clusterTime"].time if change else 0
        self._is_level = age < _RECENT
        token = change["_id"] if change else self._change_stream.resume_token
        self._start = token or self._start
        if change and self._slim:
            self._slim = False
            await self.close_cursor()
        return change

    async def _try_next(self, limit: float) -> Document | None:
        if self._change_stream is None:
            await self._reopen()
        if self._is_polling and not self.has_more:
            await asyncio.sleep(_POLL)
        call = self._change_stream.try_next()
        if self._opened.driver is Driver.MOTOR:
            # A cancellation does not stop its thread, which may open a cursor.
            self._thread = background(_within(limit, call))
            call = asyncio.shield(self._thread)
        change: Document | None = await call
        self._note_resuming()
        if change is None:
            if not self._change_stream.alive:
                raise TimeoutError  # the server closed it
        elif self._needs_document(change):
            collection = self._opened.database[change["ns"]["coll"]]
            change["fullDocument"] = await collection.find_one(change["documentKey"])
        return change

    async def _reopen(self) -> None:
        pipeline = self._slim_pipeline if self._slim else self._pipeline
        is_time = isinstance(self._start, Timestamp)
        start = "start_at_operation_time" if is_time else "start_after"
        seconds = self._opened.limits.stream_await_seconds
        await_ms = 1 if self._is_polling else round(1000 * seconds)
        where = {start: self._start, "max_await_time_ms": await_ms}
        self._change_stream = await self._exits.enter_async_context(
            open_change_stream(self._opened, pipeline, **where)
        )
        self._note_resuming()

    def _note_resuming(self) -> None:
        """Count the driver's own resumptions, where it shows them."""
        before, self._cursor = self._cursor, current_cursor(self._change_stream)
        if before is not None and self._cursor is not before:
            self.reopened += 1

    async def close_cursor(self) -> None:
        """Close the server's cursor; the next call opens another."""
        self._change_stream, self._cursor = None, None

        async def close(_: Database) -> None:
            async with asyncio.timeout(_CLOSING_SECONDS):
                if self._thread is not None:
                    await asyncio.wait([self._thread])
                await self._exits.aclose()

        # A client that is closed closes its cursors.
        with suppress(PyMongoError, TimeoutError, ConfigurationError):
            await self._opened.with_client(close)


async def _within(limit: float, call: Awaitable[Document | None]) -> Document | None:
    with pymongo.timeout(limit):
        return await call


def check_stream(error: Exception) -> None:
    """Raise, as ``next_change``, if no stream can be resumed after an error."""
    code = getattr(error, "code", None)
    if code in _LOST:
        raise HistoryLostError(f"Changes were missed: {_LOST[code]}.") from None
    if isinstance(error, PyMongoError) and not (error.timeout or is_transient(error)):
        raise translate_error(error) from None
