"""Recovery: repairs turns whose processes have died, or resumes their invocations.

A resumed invocation may be what has killed its process. So a process resumes one at a
time of those that were resumed before, and none of them more than twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from google.adk.errors.session_not_found_error import SessionNotFoundError

from mongo_session_service.errors import (
    MongoSessionServiceError,
    StorageUnavailableError,
    TurnTakenError,
    quoted,
)
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage.tasks import backoff, cancellations
from mongo_session_service.turns.running_turns import (
    RunArguments,
    RunningTurn,
    RunningTurns,
    root_agent_name,
)
from mongo_session_service.turns.turn import Turn, Turns, find_abandoned

if TYPE_CHECKING:
    from google.adk.agents.run_config import RunConfig
    from google.adk.runners import Runner

logger = logging.getLogger(__name__)

_LONGEST_PAUSE: Final = 300.0
"""Seconds after which a session is tried again that could not be recovered."""


@dataclass
class Recovery:
    """Recovers the abandoned turns of a runner's app."""

    turns: Turns
    running_turns: RunningTurns
    runner: Runner
    run_config: RunConfig | None
    resumes: bool
    _repeated: RunningTurn | None = None
    """The latest turn here that was resumed before."""
    _aside: dict[SessionKey | None, tuple[int, float]] = field(default_factory=dict)
    """How often the recovery of a session has failed, and when it is tried again.
    None stands for the search for such sessions."""

    async def run(self) -> None:
        """Recover turns until this call is cancelled."""
        while True:
            await self._attempt(None, self._recover_all)
            await asyncio.sleep(self.turns.backends.limits.recovery_seconds)

    async def _attempt(
        self, key: SessionKey | None, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Do some work, unless it is put aside: for longer and longer if it fails."""
        failures, again_at = self._aside.get(key, (0, 0.0))
        if time.monotonic() < again_at:
            return
        before = cancellations()
        try:
            await work()
        except (TurnTakenError, SessionNotFoundError):
            pass  # others were faster
        except (Exception, asyncio.CancelledError) as error:
            if cancellations() > before:
                raise
            if key is None and isinstance(error, StorageUnavailableError):
                return  # it looks again soon
            first = self.turns.backends.limits.recovery_seconds
            pause = backoff(failures, first=first, longest=_LONGEST_PAUSE)
            self._aside[key] = failures + 1, time.monotonic() + pause
            what = "Abandoned turns were not found"
            if key is not None:
                what = f"The turn of session {quoted(key.session_id)} was not recovered"
            is_safe = isinstance(error, MongoSessionServiceError)
            why = error if is_safe else type(error).__qualname__
            logger.warning("%s: tried again in %.1f seconds. %s", what, pause, why)
        else:
            self._aside.pop(key, None)

    async def _recover_all(self) -> None:
        backend = await self.turns.backends.backend()
        found = await find_abandoned(backend.storage, self.runner.app_name)
        for key, is_repeated in found.items():
            if is_repeated and self._repeated and not self._repeated.is_done:
                continue
            turn = Turn(self.turns, key, 0)
            turn.root_agent_name = root_agent_name(self.runner)
            turn.resumes = self.resumes
            await self._attempt(key, partial(self._recover, turn, is_repeated))

    async def _recover(self, turn: Turn, is_repeated: bool) -> None:  # noqa: FBT001
        if not self.resumes:
            async with turn:
                turn.fail_if_taken_over()
            return
        arguments: RunArguments = {"run_config": self.run_config}
        running = RunningTurn(turn, self.runner, arguments)
        await self.running_turns.start(running)
        if is_repeated:
            self._repeated = running
