"""Sessions as resources, server-sent events and the live page, for FastAPI apps."""

from __future__ import annotations

from mongo_session_service.http.adk_routes import adk_router
from mongo_session_service.http.live import live_app
from mongo_session_service.http.refusals import (
    Authorize,
    add_error_handlers,
    allow_everyone,
)
from mongo_session_service.http.session_routes import sessions_router

__all__ = [
    "Authorize",
    "add_error_handlers",
    "adk_router",
    "allow_everyone",
    "live_app",
    "sessions_router",
]
