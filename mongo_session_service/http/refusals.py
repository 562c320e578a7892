"""What an HTTP client is told when it cannot have, or go on having, changes.

In fixed words: neither hosts nor what is stored is in them.
"""

from __future__ import annotations

import logging
from typing import Final

from google.adk.errors.session_not_found_error import SessionNotFoundError
from starlette.responses import JSONResponse

from mongo_session_service.errors import (
    HistoryLostError,
    InvalidInputError,
    MongoSessionServiceError,
    SlowSubscriberError,
    StorageUnavailableError,
)

logger = logging.getLogger(__name__)

RETRY: Final = 2
"""Seconds after which a client should come back."""

_RETRY_LATER: Final = 10
_RETRY_MUCH_LATER: Final = 60

NO_STORE: Final = {"Cache-Control": "no-store"}

REFUSED: Final = (SessionNotFoundError, MongoSessionServiceError, TimeoutError)
"""What :func:`refusal_of` knows an answer to."""

_SEE_LOG: Final = "Sessions cannot be read; see the server's log."


def refusal_of(error: Exception) -> JSONResponse:
    """The answer to a request that failed."""
    match error:
        case InvalidInputError():
            return refusal(400, str(error))
        case SessionNotFoundError():
            return refusal(404, "There is no such session.")
        case StorageUnavailableError() | TimeoutError():
            later = {"Retry-After": str(_RETRY_LATER)}
            return refusal(503, "MongoDB is unavailable.", **later)
        case _:
            logger.error("A session could not be watched. %s", error)
            return refusal(500, _SEE_LOG)


def refusal(status: int, detail: str, **headers: str) -> JSONResponse:
    """An answer that is not what was asked for."""
    return JSONResponse({"detail": detail}, status, {**NO_STORE, **headers})


def trouble(error: MongoSessionServiceError) -> tuple[int, str]:
    """In how many seconds to come back to a stream that ends, and why it does."""
    match error:
        case SlowSubscriberError():
            return RETRY, "This client read too slowly."
        case HistoryLostError():
            return RETRY, "Changes were missed that cannot be had again."
        case StorageUnavailableError():
            return _RETRY_LATER, "MongoDB is unavailable."
        case _:
            return _RETRY_MUCH_LATER, _SEE_LOG
