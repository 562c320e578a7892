"""Retries: what may be repeated is, and the driver's errors become this package's.

:func:`repeat` is the one rule of retries, by which each verb of the kernel runs. The
driver itself repeats every command once, on another connection, and a transaction that
was turned away until its time limit. What no longer may be repeated fails; its outcome
may be unknown, and the caller decides.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from enum import Enum, auto
from itertools import count
from types import TracebackType
from typing import Any, Final, TypeVar

from bson.errors import BSONError
from pymongo.errors import (
    ConnectionFailure,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)

from mongo_session_service.errors import (
    ConfigurationError,
    MongoSessionServiceError,
    StorageUnavailableError,
    UnknownOutcomeError,
)
from mongo_session_service.storage.compat import renew_connections
from mongo_session_service.storage.statements import DuplicateError
from mongo_session_service.storage.tasks import SwallowedCancellation, backoff
from mongo_session_service.storage.translation import (
    FOREIGN_LOOP,
    TRANSIENT_CODES,
    LoginLostError,
    is_bad_login,
    is_duplicate_key,
    is_logged_out,
    is_starting,
    is_turned_away,
    reporting_unknown_outcome,
    translate_error,
)

Result = TypeVar("Result")

RETRY_LIMIT: Final = 60.0
"""Seconds until a failing operation is given up; an election takes up to 12."""

PAUSE_AFTER_LOSS: Final = 0.5
"""Seconds before a stream that lost its history is reopened, to avoid a busy loop."""

REPEAT_PAUSES: Final = (0.01, 0.05, 0.2)
"""Seconds between the attempts of what is repeated soon."""

_FIRST_RETRY_PAUSE: Final = 0.02  # seconds
_LONGEST_RETRY_PAUSE: Final = 2.0  # seconds


class ErrorTranslation:
    """Translate PyMongo errors raised in the block to this package's.

    If an error comes from an outdated connection, the client's connections are renewed.
    """

    __slots__ = ("_client",)

    def __init__(self, client: Any) -> None:
        self._client = client

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Without their original, whose text may quote a document.
        if isinstance(exc, PyMongoError):
            renewed = await renew_after_logout(self._client, exc)
            raise translate_error(renewed, self._client) from None
        if isinstance(exc, BSONError):
            raise translate_error(exc) from None
        if isinstance(exc, RuntimeError) and _FOREIGN.search(str(exc)):
            raise ConfigurationError(FOREIGN_LOOP) from None


_FOREIGN: Final = re.compile("different (?:event )?loop|loop is closed")


async def renew_after_logout(client: Any, error: PyMongoError) -> PyMongoError:
    """Renew outdated connections; ``LoginLostError`` if a user was dropped on one."""
    if await renew_connections(client, error) and is_logged_out(error):
        return LoginLostError(str(error))
    return error


class Effect(Enum):
    """How far a failure leaves the outcome of what is repeated unknown."""

    READ = auto()
    WRITE = auto()
    TRANSACTION = auto()


async def repeat(
    client: Any, work: Callable[[], Awaitable[Result]], effect: Effect, *, patient: bool
) -> Result:
    """Do something, again after a failure that passes; raise this package's errors.

    The impatient, for whom a caller waits, is repeated three
    times, soon: what reads, after any transient failure, and what writes if it is
    certain that nothing was done, since a server has turned it away. The patient is
    repeated for ``RETRY_LIMIT`` seconds, after any transient failure, and so has to
    have the same result when it is done twice.
    """
    waiting = pauses() if patient else iter(REPEAT_PAUSES)
    while True:
        try:
            # An attempt to write has a task of its own, which nobody cancels; and the
            # call of the impatient ends soon, and looks then.
            with SwallowedCancellation() if patient else nullcontext():
                return await work()
        except PyMongoError as error:
            failure = await renew_after_logout(client, error)
            pause = None
            if _may_repeat(failure, effect, patient=patient):
                pause = next(waiting, None)
                if pause is None and patient and effect is not Effect.WRITE:
                    raise gave_up_error(failure, client) from None
            if pause is None:
                raise _translated(failure, effect, client) from None
        except BSONError as error:
            raise translate_error(error) from None
        except RuntimeError as error:
            if not _FOREIGN.search(str(error)):
                raise
            raise ConfigurationError(FOREIGN_LOOP) from None
        await asyncio.sleep(pause)


def _may_repeat(error: PyMongoError, effect: Effect, *, patient: bool) -> bool:
    if patient:
        return is_transient(error)
    if effect is Effect.READ:
        # Where no server was found, the driver has waited already.
        return is_transient(error) and not isinstance(
            error, ServerSelectionTimeoutError
        )
    return is_turned_away(error) or isinstance(error, LoginLostError)


def _translated(error: PyMongoError, effect: Effect, client: Any) -> Exception:
    """Return the error that leaves the room, without the driver's, which may quote."""
    if is_duplicate_key(error):
        return DuplicateError()
    if effect is Effect.WRITE:
        try:
            with reporting_unknown_outcome():
                raise error
        except UnknownOutcomeError as unknown:
            return unknown
        except PyMongoError:
            pass
    return translate_error(error, client)


def pauses() -> Iterator[float]:
    """Yield the seconds between retries, until ``RETRY_LIMIT`` has run out."""
    end = time.monotonic() + RETRY_LIMIT
    for attempt in count():
        if time.monotonic() >= end:
            return
        yield backoff(attempt, first=_FIRST_RETRY_PAUSE, longest=_LONGEST_RETRY_PAUSE)


def gave_up_error(error: Exception, client: Any) -> MongoSessionServiceError:
    """Return the error to raise when ``RETRY_LIMIT`` has run out."""
    reason = "MongoDB does not answer."
    if isinstance(error, PyMongoError):
        reason = str(translate_error(error, client))
    return StorageUnavailableError(f"Gave up after {RETRY_LIMIT:.0f} seconds. {reason}")


def is_transient(error: PyMongoError) -> bool:
    """Tell whether a failure of MongoDB is transient: a retry may succeed."""
    if isinstance(error, OperationFailure):
        is_resumable = error.has_error_label("ResumableChangeStreamError")
        # Who was dropped may be created again. Whose login was never accepted does not
        # come here: setting up has failed.
        is_login = is_logged_out(error) or is_bad_login(error)
        return is_resumable or is_login or error.code in TRANSIENT_CODES
    is_connection = isinstance(error, ConnectionFailure | LoginLostError)
    return is_connection or is_starting(error)
