"""Pace: what is done without waiting for anything lets other tasks run meanwhile."""

from __future__ import annotations

import asyncio
import time
from typing import Final

_SLICE: Final = 0.005  # seconds


class Pace:
    """Gives the event loop a turn after each slice of time."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _SLICE

    async def keep(self) -> None:
        """Let other tasks run if the slice is over."""
        if time.monotonic() >= self._end:
            await asyncio.sleep(0)
            self._end = time.monotonic() + _SLICE
