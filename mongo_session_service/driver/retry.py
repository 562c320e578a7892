"""Retry policy: which failures of MongoDB are transient, and how long to retry."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

from pymongo.errors import ConnectionFailure, OperationFailure, PyMongoError

from mongo_session_service.driver.cancellation import SwallowedCancellation
from mongo_session_service.driver.compat import (
    LoginLostError,
    is_logged_out,
    is_starting,
    renewed,
)
from mongo_session_service.driver.errors import (
    TRANSIENT_CODES,
    is_bad_login,
    translation,
)
from mongo_session_service.errors import (
    MongoSessionServiceError,
    StorageUnavailableError,
)

Result = TypeVar("Result")

RETRY_LIMIT: Final = 60.0
"""Seconds until a failing operation is given up; an election takes up to 12."""

PAUSE_AFTER_LOSS: Final = 0.5
"""Seconds before a stream that lost its history is reopened, to avoid a busy loop."""

_FIRST_PAUSE: Final = 0.02  # seconds
_LONGEST_PAUSE: Final = 2.0  # seconds


def pauses() -> Iterator[float | None]:
    """Growing pauses with jitter, in seconds; None once ``RETRY_LIMIT`` has run out."""
    end = time.monotonic() + RETRY_LIMIT
    pause = _FIRST_PAUSE
    while time.monotonic() < end:
        yield pause * random.uniform(0.5, 1)  # noqa: S311  not for secrets
        pause = min(2 * pause, _LONGEST_PAUSE)
    while True:
        yield None


def given_up(error: Exception) -> MongoSessionServiceError:
    """The error to raise when ``RETRY_LIMIT`` has run out."""
    reason = "MongoDB does not answer."
    if isinstance(error, PyMongoError):
        reason = str(translation(error))
    return StorageUnavailableError(f"Gave up after {RETRY_LIMIT:.0f} seconds. {reason}")


async def persistently(
    read: Callable[[], Awaitable[Result]], client: Any = None
) -> Result:
    """Read, and retry while MongoDB fails with transient errors.

    Args:
        read: What to do, on no connection longer than it takes.
        client: What it uses, unless it is in a session of the driver's: that renews
            outdated connections itself.

    Raises:
        StorageUnavailableError: it failed for ``RETRY_LIMIT`` seconds.
        PyMongoError: it failed with an error that is not transient.
    """
    waiting = pauses()
    while True:
        try:
            with SwallowedCancellation():
                return await read()
        except PyMongoError as error:
            if not is_passing(error):
                raise
            if client is not None:
                await renewed(client, error)
            pause = next(waiting)
            if pause is None:
                raise given_up(error) from None
        await asyncio.sleep(pause)


def is_passing(error: PyMongoError) -> bool:
    """Whether a failure of MongoDB is transient: a retry may succeed."""
    if isinstance(error, OperationFailure):
        is_resumable = error.has_error_label("ResumableChangeStreamError")
        # Who was dropped may be created again. Whose login was never accepted does not
        # come here: setting up has failed.
        is_login = is_logged_out(error) or is_bad_login(error)
        return is_resumable or is_login or error.code in TRANSIENT_CODES
    is_connection = isinstance(error, ConnectionFailure | LoginLostError)
    return is_connection or is_starting(error)
