"""Command line ``mongo-session-service``."""

from __future__ import annotations

from mongo_session_service.cli.app import main

__all__ = ["main"]
