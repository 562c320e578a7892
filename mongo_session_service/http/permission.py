"""Permission: what the application's ``authorize`` says to a request."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias

import anyio.to_thread
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mongo_session_service.changes.routing import Scope
from mongo_session_service.errors import ConfigurationError
from mongo_session_service.model.records import SessionKey

logger = logging.getLogger(__name__)

Action: TypeAlias = Literal["read", "list", "update", "fork", "delete", "run", "stop"]
"""What a request asks to do."""

_OFFERED: Final[tuple[Action, ...]] = (
    *("list", "read", "update", "fork", "delete", "stop"),
)

_MAY_NOT: Final = "You may not do this."


class Authorize(Protocol):
    """Decides whether a request may do something: returns, or awaits, True or False."""

    def __call__(
        self,
        request: Request,
        /,
        *,
        app_name: str,
        user_id: str,
        session_id: str | None,
        action: Action,
    ) -> bool | Awaitable[bool]:
        """Decide, before anything is read.

        Args:
            request: The request.
            app_name: The app.
            user_id: The user whose session it is.
            session_id: The session; None if ``action`` is ``"list"``.
            action: ``"list"`` a user's sessions; or ``"read"``, ``"update"`` (title and
                labels), ``"fork"`` or ``"delete"`` a session; ``"run"`` an agent in a
                turn of it, or ``"stop"`` one.
        """


async def allow_everyone(
    _: Request, *, app_name: str, user_id: str, session_id: str | None, action: Action
) -> bool:
    """Allows everybody everything, where that is meant: on a developer's own machine.

    Pass it as ``authorize``.
    """
    del app_name, user_id, session_id, action
    return True


class Permission:
    """Asks ``authorize``, within a time and within a scope."""

    def __init__(self, authorize: Authorize, seconds: float, within: Scope) -> None:
        """Only what lies ``within`` is allowed at all."""
        if not callable(authorize):
            message = (
                "authorize must be a function (request, *, app_name, user_id,"
                " session_id, action) that returns whether the request is allowed;"
                " allow_everyone lets everybody in."
            )
            raise ConfigurationError(message)
        self._authorize = authorize
        self._seconds = seconds
        self._within = within

    async def require(
        self, request: Request, key: SessionKey | Scope, action: Action
    ) -> None:
        """Refuse a request that may not do an action to a session or a user's."""
        if not await self.allows(request, key, action):
            raise HTTPException(403, _MAY_NOT)

    async def allows(
        self, request: Request, key: SessionKey | Scope, action: Action
    ) -> bool:
        """Ask whether a request may do an action to a session or a user's.

        If ``authorize`` fails: its own HTTPException, or one with 500; 503 if too late.
        """
        pairs = zip(self._within, key, strict=True)
        if any(own not in {None, asked} for own, asked in pairs):
            return False
        names = key._asdict()
        asked = asyncio.ensure_future(self._ask(request, **names, action=action))
        try:
            # Waited for rather than timed out: it may hold up its own cancellation.
            await asyncio.wait({asked}, timeout=self._seconds)
            if not asked.done():
                logger.error("authorize did not answer in %g seconds.", self._seconds)
                why = "It could not be decided in time whether you may do this."
                raise HTTPException(503, why, {"Retry-After": "10"})
        finally:
            asked.cancel()
        return asked.result()

    async def allowed_actions(self, request: Request, key: SessionKey) -> list[Action]:
        """List what a request may do to a session; for a page to offer no more."""
        allowed = []
        for each in _OFFERED:
            asked = Scope(*key[:2]) if each == "list" else key
            with suppress(HTTPException):  # another way to say no
                if await self.allows(request, asked, each):
                    allowed.append(each)
        return allowed

    async def _ask(self, request: Request, **asked: Any) -> bool:
        call = partial(self._authorize, request, **asked)
        try:
            if inspect.iscoroutinefunction(self._authorize):
                answer = call()
            else:
                answer = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
            if inspect.isawaitable(answer):
                answer = await answer
        except HTTPException:
            raise
        except Exception as error:
            logger.exception("authorize failed.")
            raise HTTPException(500, "See the server's log.") from error
        if not isinstance(answer, bool):
            kind = type(answer).__name__
            logger.error("authorize must return True or False, not %s.", kind)
            raise HTTPException(500, "See the server's log.")
        return answer
