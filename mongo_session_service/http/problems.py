"""Problem details: the one form that a refusal over HTTP has (RFC 9457)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from http.client import responses
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from mongo_session_service.errors import (
    DocumentTooLargeError,
    InvalidInputError,
    LeaseLostError,
    MongoSessionServiceError,
    StorageUnavailableError,
    TurnTakenError,
    UnknownOutcomeError,
)

logger = logging.getLogger(__name__)

NO_STORE: Final = {"Cache-Control": "no-store"}

RETRY_SECONDS: Final = 10
"""Seconds after which MongoDB may be there again."""

SEE_LOG: Final = "Sessions cannot be read or written; see the server's log."
UNAVAILABLE: Final = "MongoDB is unavailable."

LATER: Final = {"Retry-After": str(RETRY_SECONDS)}

REFUSED: Final = (
    HTTPException,
    RequestValidationError,
    AlreadyExistsError,
    SessionNotFoundError,
    StaleSessionError,
    MongoSessionServiceError,
    TurnTakenError,
)
"""The errors that :func:`problem_of_error` answers."""


def problem_response(
    status: int,
    detail: str,
    headers: Mapping[str, str] | None = None,
    **members: Any,
) -> Response:
    """Make the answer to a request that is refused."""
    title = responses.get(status, "Refused")
    problem = {"type": "about:blank", "title": title, "status": status}
    return Response(
        json.dumps(problem | {"detail": detail} | members),
        status,
        {**NO_STORE, **(headers or {})},
        "application/problem+json",
    )


def problem_of_error(error: Exception) -> Response:
    """Make the answer to a request that failed with one of the errors in ``REFUSED``.

    What it says holds nothing that is stored, and nothing of the request's content.
    """
    match error:
        case HTTPException():
            return problem_response(error.status_code, str(error.detail), error.headers)
        case RequestValidationError():
            mistakes = [
                {name: each[name] for name in ("loc", "msg", "type")}
                for each in error.errors()
            ]
            named = (".".join(map(str, each["loc"][1:])) for each in mistakes)
            told = [
                f"{name or 'body'}: {each['msg']}"
                for name, each in zip(named, mistakes, strict=True)
            ]
            return problem_response(422, "; ".join(told), errors=mistakes)
        case DocumentTooLargeError() | InvalidInputError():
            is_too_large = isinstance(error, DocumentTooLargeError)
            return problem_response(413 if is_too_large else 422, error.message)
        case SessionNotFoundError():
            return problem_response(404, "There is no such session.")
        case StaleSessionError():
            why = "The session was written to meanwhile. Load it, and try again."
            return problem_response(409, why)
        case TurnTakenError():
            why = "Another turn of the session runs. Wait for its end, or stop it."
            return problem_response(409, why)
        case AlreadyExistsError() | LeaseLostError():
            return problem_response(409, str(error))
        case UnknownOutcomeError():
            return problem_response(503, "It is not known whether this was done.")
        case StorageUnavailableError():
            return problem_response(503, UNAVAILABLE, LATER)
        case _:
            logger.error("A request failed. %s", error)
            return problem_response(500, SEE_LOG)


def add_error_handlers(app: FastAPI) -> None:
    """Has an application answer errors as :func:`sessions_router` does.

    With problem details (RFC 9457) as JSON: 404 for ``SessionNotFoundError``, 409 for
    ``AlreadyExistsError``, ``StaleSessionError``, a turn that is taken, or was lost;
    413 for ``DocumentTooLargeError``, 422 for ``InvalidInputError`` and for requests
    that FastAPI finds invalid; 503 with ``Retry-After`` while MongoDB is unavailable;
    500, and a line in the log, for other errors of the service. Each ``HTTPException``
    keeps its status and headers.
    """

    async def refuse(_: Request, error: Exception) -> Response:
        return problem_of_error(error)

    for each in REFUSED:
        app.add_exception_handler(each, refuse)
