"""Processes forked from one that has imported ADK and this package: soon at work."""

from __future__ import annotations

import multiprocessing
from typing import Final

import rich.progress
from google.adk import agents, runners

from mongo_session_service import http, service, transfer
from mongo_session_service.cli import app

# Not modules of the tests: the server of forks does not find them, and says nothing.
_IMPORTED: Final = (agents, runners, app, http, service, transfer, rich.progress)

FORKS: Final = multiprocessing.get_context("forkserver")
"""There is one server of forks in a process: the last list of modules would count."""
FORKS.set_forkserver_preload([each.__name__ for each in _IMPORTED])
