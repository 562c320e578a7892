"""Server-sent events and the live page, for Starlette and FastAPI apps."""

from __future__ import annotations

from mongo_session_service.http.live_page import live_page_route
from mongo_session_service.http.sse import changes_route, live_app

__all__ = ["changes_route", "live_app", "live_page_route"]
