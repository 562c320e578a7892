"""The service's methods that keep its database small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from google.adk.platform import time as platform_time

from mongo_session_service.erasing import Erasing
from mongo_session_service.model.validation import check_callable
from mongo_session_service.sessions import deletion, queries
from mongo_session_service.telemetry import traced
from mongo_session_service.watching import Watching


@dataclass(frozen=True, slots=True)
class Pruned:
    """What :meth:`MongoSessionService.prune` has removed, or would remove."""

    sessions: int = 0
    """Those whose removal began here."""
    events: int = 0


class Upkeep(Erasing, Watching):
    """What is done to a service's database now and then."""

    @traced
    async def prune(self, progress: Callable[[Pruned], object] | None = None) -> Pruned:
        """Removes what nobody is shown any more.

        That is what has expired, sessions together with their events, and what
        interrupted deletes have left. It goes in small steps, each a transaction of its
        own: it may be interrupted, repeated, and run by any number of processes at the
        same time. Consumers are told that a session is ``deleted`` when it is removed;
        who watches was told when it expired.

        Args:
            progress: Called after each step, with what was removed so far.

        Raises:
            InvalidInputError: ``progress`` is no function.
        """
        if progress is not None:
            check_callable("progress", progress)
        pruned = Pruned()
        is_over = False
        while not is_over:
            wanted = queries.expired(platform_time.get_time())
            async with self._opened() as opened:
                step = await deletion.remove_some(opened.connection, wanted)
            pruned = Pruned(
                pruned.sessions + step.sessions, pruned.events + step.events
            )
            is_over = step.is_last
            if progress is not None:
                progress(pruned)
        return pruned

    @traced
    async def prunable(self) -> Pruned:
        """Counts what :meth:`prune` would remove now.

        Of deletes that were interrupted it does not know how many events are left.
        """
        wanted = queries.expired(platform_time.get_time())
        async with self._opened() as opened:
            at = opened.connection
            found = await at.aggregate(at.sessions, queries.counting(wanted))
        return Pruned(found[0]["sessions"], found[0]["events"]) if found else Pruned()
