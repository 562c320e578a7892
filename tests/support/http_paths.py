"""Paths of the session routes, for the session that most tests are about."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI

from mongo_session_service import MongoSessionService
from mongo_session_service.http import (
    add_error_handlers,
    allow_everyone,
    sessions_router,
)

USER: Final = "/apps/app/users/user"
SESSION: Final = f"{USER}/sessions/s"
EVENTS: Final = f"{SESSION}/events"
CHANGES: Final = f"{SESSION}/changes"
USER_CHANGES: Final = f"{USER}/changes"


def app_of(service: MongoSessionService, **options: Any) -> FastAPI:
    """An application with the session routes, open to everybody unless told so."""
    app = FastAPI()
    add_error_handlers(app)
    app.include_router(
        sessions_router(service, **{"authorize": allow_everyone} | options)
    )
    return app
