"""Supervisor: background tasks that are started again when they have died."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Final, NamedTuple, ParamSpec

from mongo_session_service.driver.calls import backoff

logger = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")

_FIRST_PAUSE: Final = 0.1
"""Seconds until a task that has died is started again."""
_LONGEST_PAUSE: Final = 2.0
"""Seconds, as long as it dies again and again; a lease needs a renewal in six."""


class Supervisor(NamedTuple):
    """Runs what is to run until it ends by itself, also if it fails on the way."""

    task_name: str
    """The subject of the sentence that is logged."""

    async def run_task(
        self,
        run: Callable[Arguments, Awaitable[None]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        """Run a coroutine to its end, again after each failure."""
        for pause in _pauses():
            try:
                await run(*args, **kwargs)
                return
            except Exception as error:  # noqa: BLE001  or nobody would do its work
                self.log_death(error)
            await asyncio.sleep(pause)

    def run_thread(
        self,
        run: Callable[Arguments, None],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        """Run a thread's function to its end, again after each failure."""
        for pause in _pauses():
            try:
                run(*args, **kwargs)
                return
            except Exception as error:  # noqa: BLE001  or nobody would do its work
                self.log_death(error)
            time.sleep(pause)

    def log_death(self, error: Exception) -> None:
        """Log the cause, without its text, which may quote what is stored."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        logger.error(
            "%s died of %s at %s.", self.task_name, type(error).__qualname__, where
        )


def _pauses() -> Iterator[float]:
    for attempt in count():
        yield backoff(attempt, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
