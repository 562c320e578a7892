"""Processes of their own, so that what is measured shares no thread with its load."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def new_processes(count: int) -> ProcessPoolExecutor:
    """Make a pool that starts up to so many, which share nothing with this one."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"))


def play(
    role: Callable[..., Coroutine[Any, Any, Any]], *args: Any, **options: Any
) -> Any:
    """Run a coroutine function in an event loop of this process."""
    return asyncio.run(role(*args, **options))
