"""Access: whether a request may read a session, read a user's sessions, or write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mongo_session_service.changes.routing import Scope
from mongo_session_service.errors import ConfigurationError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.validation import check_id

Authorize: TypeAlias = Callable[[Request, SessionKey], Any]
"""Decides whether a request may read a session; returns or awaits a bool."""

AuthorizeUser: TypeAlias = Callable[[Request, str, str], Any]
"""Decides whether a request may read all sessions of a user, by app and user."""

AuthorizeWrite: TypeAlias = Callable[[Request, SessionKey, str], Any]
"""Decides whether a request may ``"fork"``, ``"update"`` or ``"delete"`` a session."""

EVERYTHING: Final = Scope()


@dataclass(frozen=True)
class Access:
    """The functions of an app that decide; without one, nobody may."""

    authorize: Authorize
    authorize_user: AuthorizeUser | None = None
    authorize_write: AuthorizeWrite | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be asked.

        Raises:
            ConfigurationError: ``authorize`` is missing, or one is not a function.
        """
        if not callable(self.authorize):
            message = (
                "changes_route needs authorize=, a function of the request and the"
                " session key that returns whether the session may be read."
            )
            raise ConfigurationError(message)
        for name, arguments in (
            ("authorize_user", "the request, the app and the user"),
            ("authorize_write", "the request, the session key and the action"),
        ):
            given = getattr(self, name)
            if given is not None and not callable(given):
                message = (
                    f"{name} must be a function of {arguments} that returns whether"
                    " the request is allowed."
                )
                raise ConfigurationError(message)

    @property
    def has_lists(self) -> bool:
        """True if more than one session can be asked for at once."""
        return self.authorize_user is not None

    @property
    def methods(self) -> list[str]:
        """The HTTP methods that can be allowed."""
        return ["GET"] if self.authorize_write is None else ["GET", "POST"]

    async def may_read(self, request: Request, key: SessionKey) -> bool:
        """Ask whether the request may read a session."""
        return await _answer(self.authorize, request, key)

    async def may_write(self, request: Request, key: SessionKey, action: str) -> bool:
        """Ask whether the request may read a session and do an action to it."""
        return await self.may_read(request, key) and await _answer(
            self.authorize_write, request, key, action
        )

    async def permitted(
        self, request: Request, key: SessionKey, actions: Iterable[str]
    ) -> list[str]:
        """List what a request that may read a session may do to it."""
        permitted = []
        for each in actions:
            with suppress(HTTPException):  # another way to say no
                if await _answer(self.authorize_write, request, key, each):
                    permitted.append(each)
        return permitted

    def scope_of(self, request: Request) -> Scope:
        """Return the user whose sessions a request without a session asks for.

        Raises:
            InvalidInputError: the app or the user is missing or invalid.
        """
        named = (request.query_params.get(name, "") for name in Scope._fields[:2])
        return Scope(*map(check_id, Scope._fields, named))

    async def may_read_all(self, request: Request, scope: Scope) -> bool:
        """Ask whether the request may read all sessions of a scope."""
        is_user = scope.app_name is not None and scope.user_id is not None
        return is_user and await _answer(self.authorize_user, request, *scope[:2])

    async def lists(self, _: Request, __: SessionKey | None) -> bool:
        """Tell whether a session is shown in a list of a scope that may be read.

        None stands for the state that sessions share.
        """
        return True


@dataclass(frozen=True)
class LocalAccess(Access):
    """Access of a tool: to all within a scope, but for what ``authorize`` hides."""

    within: Scope = EVERYTHING

    @property
    def has_lists(self) -> bool:
        """They show what ``authorize`` permits."""
        return True

    async def may_read(self, request: Request, key: SessionKey) -> bool:
        """Ask ``authorize`` for a session within the tool's scope."""
        return self.within.covers(key) and await super().may_read(request, key)

    def scope_of(self, request: Request) -> Scope:
        """Return the scope that a request asks for: a user, an app, or everything.

        Raises:
            InvalidInputError: the app or the user is invalid.
        """
        asked = (request.query_params.get(name) for name in Scope._fields[:2])
        pairs = zip(Scope._fields, asked, self.within, strict=False)
        return Scope(
            *[own if it is None else check_id(name, it) for name, it, own in pairs]
        )

    async def may_read_all(self, _: Request, scope: Scope) -> bool:
        """Tell whether a scope is within the tool's."""
        pairs = zip(self.within, scope, strict=True)
        return all(own is None or own == asked for own, asked in pairs)

    async def lists(self, request: Request, key: SessionKey | None) -> bool:
        """Ask ``authorize`` for a session; shared state is never shown."""
        return key is not None and await self.may_read(request, key)


async def _answer(function: Any, request: Request, *what: object) -> bool:
    if function is None:
        return False
    if inspect.iscoroutinefunction(function):
        return bool(await function(request, *what))
    answer = await run_in_threadpool(function, request, *what)
    return bool(await answer if inspect.isawaitable(answer) else answer)
