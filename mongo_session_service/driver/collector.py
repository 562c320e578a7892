"""Collector pause: Python's cyclic garbage collector, held while objects are decoded.

Decoding makes thousands of objects that all stay alive. Meanwhile, the collector would
look for garbage among them again and again, and find none.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from threading import RLock
from typing import Final, TypeVar

Result = TypeVar("Result")


class _Pause:
    """Who has paused the collector, in all threads; the last one ends the pause."""

    def __init__(self) -> None:
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._end_in_child)

    def _reset(self) -> None:
        self._lock = RLock()  # a signal handler may decode as well
        self._holders: set[object] = set()
        self._is_ours = False

    def begin(self, holder: object) -> None:
        with self._lock:
            if not self._holders:
                self._is_ours = gc.isenabled()
            self._holders.add(holder)
            gc.disable()

    def end(self, holder: object) -> None:
        """End it for a holder, which may not have begun it."""
        with self._lock:
            if holder not in self._holders:
                return
            self._holders.discard(holder)
            if self._is_ours and not self._holders:
                gc.enable()

    def _end_in_child(self) -> None:
        """The threads that have paused it do not exist in a forked process."""
        is_paused = self._is_ours and bool(self._holders)
        self._reset()
        if is_paused:
            gc.enable()


_PAUSE: Final = _Pause()


def paused(work: Callable[[], Result]) -> Result:
    """Call a function while no garbage is collected, in any thread.

    A collector that is disabled stays disabled. It is to be short: the collection that
    is due afterwards looks at all that was made meanwhile.
    """
    holder = object()
    try:
        _PAUSE.begin(holder)
        return work()
    finally:  # so that no interrupt can leave it paused
        _PAUSE.end(holder)
