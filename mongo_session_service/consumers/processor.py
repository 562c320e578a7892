"""Change processor: calls the handler, retries it, and keeps dead letters."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from mongo_session_service.consumers import dead_letters
from mongo_session_service.consumers import handler as handlers
from mongo_session_service.consumers.coordinator import Coordinator
from mongo_session_service.consumers.fetcher import Delivery

logger = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.1  # seconds
_LONGEST_PAUSE: Final = 30.0  # seconds
_BATCH: Final = 0.1
"""Seconds of handlers' work between two commits; one takes some milliseconds."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A consumer's handler, and how it is called."""

    handler: handlers.Handler
    max_attempts: int
    transactional: bool

    async def process(
        self, coordinator: Coordinator, name: str, delivery: Delivery
    ) -> None:
        """Handle and commit a change, and all that were read together with it.

        What a crash repeats is bounded: by what one reply of MongoDB holds, and by
        ``_BATCH`` seconds of the handler's work.
        """
        following: Delivery | None = delivery
        while following is not None:
            await self._process(coordinator, name, following)
            if time.monotonic() - coordinator.saved_at >= _BATCH:
                await coordinator.settle()
            following = coordinator.take()
        await coordinator.settle()

    async def _process(
        self, coordinator: Coordinator, name: str, delivery: Delivery
    ) -> None:
        """Handle a change, or keep it as a dead letter.

        If the coordinator ends between two attempts, the next reader gets the change.
        """
        work = handlers.handling(self.handler, delivery.item, coordinator.connection)
        for attempt in range(self.max_attempts):
            try:
                if self.transactional:
                    await coordinator.save_with(work, delivery.position)
                else:
                    await work(None)
                    coordinator.note_handled(delivery.position)
                return
            except handlers.HandlerFailedError as failed:
                error = failed.error
            await coordinator.settle()  # a pause holds up no one else's commit
            is_last = attempt + 1 == self.max_attempts
            if not is_last and await coordinator.ends_within(_pause(attempt)):
                return
        logger.warning(
            "Consumer %r keeps a change as a dead letter: its handler failed %d times,"
            " last with %s.",
            name,
            self.max_attempts,
            type(error).__name__,
        )
        attempts = self.max_attempts
        letter = dead_letters.dead_letter(name, delivery.item, error, attempts)
        keep = partial(dead_letters.store, coordinator.connection, letter)
        await coordinator.save_with(keep, delivery.position)


def _pause(attempt: int) -> float:
    """Seconds to wait after a failed attempt; the first attempt is 0."""
    longest: float = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE)
    return longest * random.uniform(0.5, 1)  # noqa: S311  not for secrets
