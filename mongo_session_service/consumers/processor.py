"""A consumer's handler, called until a change is handled, or has failed for good."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import Final

from mongo_session_service.consumers.coordinator import Tenure
from mongo_session_service.consumers.dead_letters import bury, dead_letter
from mongo_session_service.consumers.fetcher import Delivery
from mongo_session_service.consumers.handler import (
    Handler,
    HandlerFailedError,
    handling,
)
from mongo_session_service.driver.transactions import Txn

logger = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.1  # seconds
_LONGEST_PAUSE: Final = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class Attempts:
    """How often a handler is called, and whether in the checkpoint's transaction."""

    handler: Handler
    most: int
    transactional: bool

    async def at(self, tenure: Tenure, name: str, delivery: Delivery) -> None:
        """Have a change handled and committed, or kept among the dead letters.

        If the tenure ends between two attempts, it is left to the next reader.
        """
        work = handling(self.handler, delivery.item)
        for attempt in range(self.most):
            try:
                if self.transactional:
                    await tenure.save_with(work, delivery.position)
                else:
                    await work(None)
                    await tenure.save(delivery.position)
                return
            except HandlerFailedError as failed:
                error = failed.error
            is_last = attempt + 1 == self.most
            if not is_last and await tenure.ends_within(_pause(attempt)):
                return
        logger.warning(
            "Consumer %r keeps a change as a dead letter: its handler failed %d times,"
            " last with %s.",
            name,
            self.most,
            type(error).__name__,
        )
        letter = dead_letter(name, delivery.item, error, self.most)

        async def keep(txn: Txn) -> None:
            await bury(tenure.connection, letter, txn)

        await tenure.save_with(keep, delivery.position)


def _pause(attempt: int) -> float:
    """How many seconds to wait after a failed attempt, the first being 0."""
    longest: float = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE)
    return longest * random.uniform(0.5, 1)  # noqa: S311  not for secrets
