"""Runs the command line: ``python -m mongo_session_service``."""

from __future__ import annotations

from .cli.app import main

main(prog_name="mongo-session-service")
