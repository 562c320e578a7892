"""A session too large to be written at once, moved part by part."""

from __future__ import annotations

from collections.abc import Callable

from .incoming import Document, Incoming
from .items import Problem, named
from .planning import Plan, Standing, plan
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
        stored = (await self._target.sessions([part.key])).get(part.key)
        events = await self._target.events([part])
        planned = plan(part, stored, events.get(part.key, []))
        if planned.standing is Standing.CONFLICT:
            self.standing, self.reason = planned.standing, planned.reason
            if not await self._makes_room(part, stored):
                self._is_left_alone = True
                return
            stored = None
        elif self.standing is not Standing.CONFLICT:
            self.standing = planned.standing
        missing = len(part.appends) - planned.matched
        if not self._is_dry_run:
            await self._store(part, planned, stored)
        self.written += missing

    async def _makes_room(self, part: Incoming, stored: Document | None) -> bool:
        if self._is_dry_run or stored is None:
            return False
        if not self._is_to_replace(Problem(named(part.key), self.reason)):
            return False
        # What agrees with the source up to here stays, as if an import broke off.
        await self._target.forget(stored)
        return True

    async def _store(
        self, part: Incoming, planned: Plan, stored: Document | None
    ) -> None:
        after = part.offset + planned.matched
        if part.is_last and stored is None:
            # As if more were found: whatever is beyond the end goes.
            last = Plan(Standing.NEW, planned.matched, found=len(part.appends) + 1)
            await self._target.write([(part, last, None)], [])
        elif part.is_last and planned.standing is Standing.BEHIND:
            await self._target.write([(part, planned, stored)], [])
        elif not part.is_last and after < part.revision and stored is None:
            is_clear = planned.matched == planned.found
            await self._target.store_part(part, after, is_clear=is_clear)
        elif not part.is_last and after < part.revision and stored is not None:
            await self._target.append_part(part, stored, after)
