"""A session too large to be written at once, moved part by part."""

from __future__ import annotations

from collections.abc import Callable

from .batches import Incoming
from .reconcile import Standing, plan
from .records import Problem, named
from .target import Target


class LargeSession:
    """Where one such session stands while its parts come in."""

    def __init__(
        self,
        target: Target,
        *,
        is_dry_run: bool,
        is_to_replace: Callable[[Problem], bool],
    ) -> None:
        self.standing = Standing.NEW
        self.reason = ""
        self.written = 0
        self._target = target
        self._is_dry_run = is_dry_run
        self._is_to_replace = is_to_replace
        self._is_left_alone = False

    async def take(self, part: Incoming) -> None:
        """Store a part, or find that it is stored; the last makes the session exist.

        Raises:
            ChangedError: the target is not as planned for; this part may be tried
                again.
        """
        if self._is_left_alone:
            return
        found = (await self._target.sessions([part.key])).get(part.key)
        events = await self._target.events([part])
        hooks = self._target.hooks
        planned = plan(part, found, events.get(part.key, []), hooks)
        if planned.standing is Standing.CONFLICT:
            self.standing, self.reason = planned.standing, planned.reason
            conflict = Problem(named(part.key), self.reason)
            if self._is_dry_run or not self._is_to_replace(conflict):
                self._is_left_alone = True
                return
        elif self.standing is not Standing.CONFLICT:
            self.standing = planned.standing
        if planned.is_lacking and not self._is_dry_run:
            await self._target.write([(part, planned, found)], [])
        self.written += len(part.appends) - planned.matched
