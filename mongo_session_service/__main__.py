"""Entry point of ``python -m mongo_session_service``."""

from __future__ import annotations

from mongo_session_service.cli.app import main

main(prog_name="mongo-session-service")
