"""Answers to requests that cannot be met: their status, and why."""

from __future__ import annotations

import logging
from typing import Final

from google.adk.errors.session_not_found_error import SessionNotFoundError
from starlette.responses import JSONResponse

from mongo_session_service.errors import (
    InvalidInputError,
    MongoSessionServiceError,
    StorageUnavailableError,
    UnknownOutcomeError,
)

logger = logging.getLogger(__name__)

NO_STORE: Final = {"Cache-Control": "no-store"}

REFUSED: Final = (SessionNotFoundError, MongoSessionServiceError, TimeoutError)
"""The errors that :func:`refusal_of` answers."""

RETRY_LATER: Final = 10
"""Seconds after which MongoDB may be there again."""

SEE_LOG: Final = "Sessions cannot be read; see the server's log."
UNKNOWN: Final = "There is no such session."


def refusal(status: int, detail: str, **headers: str) -> JSONResponse:
    """Make an error response."""
    return JSONResponse({"detail": detail}, status, {**NO_STORE, **headers})


def refusal_of(error: Exception) -> JSONResponse:
    """Make the response to a request that failed."""
    match error:
        case InvalidInputError():
            return refusal(400, str(error))
        case SessionNotFoundError():
            return refusal(404, UNKNOWN)
        case UnknownOutcomeError():
            return refusal(503, "It is not known whether this was done.")
        case StorageUnavailableError() | TimeoutError():
            later = {"Retry-After": str(RETRY_LATER)}
            return refusal(503, "MongoDB is unavailable.", **later)
        case _:
            logger.error("A session could not be read or written. %s", error)
            return refusal(500, SEE_LOG)
