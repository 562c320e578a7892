"""How long, and in which ways, a failing MongoDB is tried again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Final, TypeVar

from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from mongo_session_service.driver.cancellation import heeding_cancellation
from mongo_session_service.driver.compat import is_starting
from mongo_session_service.driver.errors import translation
from mongo_session_service.errors import (
    MongoSessionServiceError,
    StorageUnavailableError,
)

Result = TypeVar("Result")

PATIENCE: Final = 60.0
"""Seconds of failing before it is given up; an election takes up to 12."""

PAUSE_AFTER_LOSS: Final = 0.5
"""Seconds before a stream begins anew that lost its history, lest it spin."""

_FIRST_PAUSE: Final = 0.02  # seconds
_LONGEST_PAUSE: Final = 2.0  # seconds

_PASSING: Final = {
    6,  # HostUnreachable
    7,  # HostNotFound
    43,  # CursorNotFound
    89,  # NetworkTimeout
    91,  # ShutdownInProgress
    134,  # ReadConcernMajorityNotAvailableYet
    175,  # QueryPlanKilled, as by a rollback after a failover
    189,  # PrimarySteppedDown
    237,  # CursorKilled
    239,  # SnapshotTooOld
    246,  # SnapshotUnavailable
    262,  # ExceededTimeLimit
    9001,  # SocketException
    10107,  # NotWritablePrimary
    11600,  # InterruptedAtShutdown
    11601,  # Interrupted
    11602,  # InterruptedDueToReplStateChange
    13435,  # NotPrimaryNoSecondaryOk
    13436,  # NotPrimaryOrSecondary
}


def pauses() -> Iterator[float | None]:
    """Growing pauses with jitter, in seconds; None once ``PATIENCE`` has run out."""
    end = time.monotonic() + PATIENCE
    pause = _FIRST_PAUSE
    while time.monotonic() < end:
        yield pause * random.uniform(0.5, 1)  # noqa: S311  not for secrets
        pause = min(2 * pause, _LONGEST_PAUSE)
    while True:
        yield None


def given_up(error: Exception) -> MongoSessionServiceError:
    """What is raised when patience has run out."""
    reason = (
        str(translation(error))
        if isinstance(error, PyMongoError)
        else "MongoDB does not answer."
    )
    return StorageUnavailableError(f"Gave up after {PATIENCE:.0f} seconds. {reason}")


async def persistently(read: Callable[[], Awaitable[Result]]) -> Result:
    """Do a read, again and again if MongoDB is failing in ways that pass.

    Raises:
        StorageUnavailableError: it has been failing for ``PATIENCE`` seconds.
        PyMongoError: it failed in another way.
    """
    waiting = pauses()
    while True:
        try:
            with heeding_cancellation():
                return await read()
        except PyMongoError as error:
            if not is_passing(error):
                raise
            pause = next(waiting)
            if pause is None:
                raise given_up(error) from None
        await asyncio.sleep(pause)


def is_passing(error: PyMongoError) -> bool:
    """Whether a failure of MongoDB's may be over soon."""
    if isinstance(error, OperationFailure):
        is_resumable = error.has_error_label("ResumableChangeStreamError")
        return is_resumable or error.code in _PASSING
    return isinstance(error, ConnectionFailure) or is_starting(error)
