"""Source: any ``BaseSessionService``, through its public methods."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session

from mongo_session_service.errors import SourceError
from mongo_session_service.model import scopes
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.wording import indefinite
from mongo_session_service.transfer.source_items import (
    EVERYTHING,
    Item,
    Problem,
    Selection,
    SessionHeader,
    SharedState,
    session_text,
)
from mongo_session_service.transfer.sources.base_source import BaseSource


@asynccontextmanager
async def source_of_factory(
    factory: Callable[[], Any], apps: Iterable[str]
) -> AsyncIterator[ServiceSource]:
    """The sessions of a service that a function returns; it is closed at the end."""
    name = getattr(factory, "__qualname__", type(factory).__name__)
    try:
        service = factory()
        if inspect.isawaitable(service):
            service = await service
    except Exception as error:
        # Its text may hold the password of what it connects to.
        message = (
            f"{name}() failed with {type(error).__name__}. It is called without"
            " arguments, and must return a BaseSessionService."
        )
        raise SourceError(message) from error
    if not isinstance(service, BaseSessionService):
        message = (
            f"{name}() returned {indefinite(type(service).__name__)}, which is not a"
            " BaseSessionService."
        )
        raise SourceError(message)
    try:
        async with ServiceSource(service, apps) as source:
            yield source
    finally:
        closing = getattr(service, "close", None)
        result = closing() if callable(closing) else None
        if inspect.isawaitable(result):
            await result


class ServiceSource(BaseSource):
    """The sessions of an open service, which stays open.

    The public methods do not return the names of apps, the creation times of sessions,
    or the state of users without a session. A session is loaded as a whole.
    """

    def __init__(self, service: BaseSessionService, apps: Iterable[str]) -> None:
        """Reads nothing yet; ``apps`` are the names of the service's apps."""
        self._service = service
        self._apps = sorted(apps)
        if not self._apps:
            raise SourceError("Name the apps: a session service does not list them.")

    @property
    def name(self) -> str:
        """The service's class."""
        return f"sessions of {type(self._service).__name__}"

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """Each session with its events, after shared state that has changed."""
        for app_name in filter(selection.takes_app, self._apps):
            shown: dict[str | None, SharedState] = {}
            for key in await self._keys_of_app(app_name, selection):
                try:
                    session = await self.load(key)
                except Exception as error:  # noqa: BLE001  foreign services raise any
                    reason = f"its service raised {type(error).__name__}"
                    yield Problem(session_text(key), reason)
                    continue
                if session is None:
                    continue
                state = scopes.split(session.state)
                for shared in (
                    SharedState(app_name, None, state.app),
                    SharedState(app_name, key.user_id, state.user),
                ):
                    if shared.state and shown.get(shared.user_id) != shared:
                        shown[shared.user_id] = shared
                        yield shared
                yield SessionHeader(key, state.session, session.last_update_time)
                for event in session.events:
                    yield event

    async def _keys_of_app(
        self, app_name: str, selection: Selection
    ) -> list[SessionKey]:
        """The sorted keys of the selected sessions of an app."""
        # Some services list the sessions of one user only.
        users = [{"user_id": each} for each in selection.users] or [{}]
        try:
            lists = [
                (await self._service.list_sessions(app_name=app_name, **user)).sessions
                for user in users
            ]
        except TypeError as error:
            message = (
                f"{type(self._service).__name__} cannot list the sessions of all users:"
                " name the users, with --user or in the Selection."
            )
            raise SourceError(message) from error
        return sorted(
            key
            for each in chain.from_iterable(lists)
            for key in [SessionKey(app_name, each.user_id, each.id)]
            if selection.takes(key, each.last_update_time)
        )

    async def load(self, key: SessionKey) -> Session | None:
        """A session as a whole."""
        return await self._service.get_session(**key.id)

    async def find_shared(self, app_name: str, user_id: str | None) -> dict[str, Any]:
        """The state of an app or user, as one of their sessions shows it."""
        listed = await self._service.list_sessions(app_name=app_name, user_id=user_id)
        for each in listed.sessions[:1]:
            session = await self.load(SessionKey(app_name, each.user_id, each.id))
            if session is not None:
                state = scopes.split(session.state)
                return state.app if user_id is None else state.user
        return {}

    async def keys(self, selection: Selection) -> AsyncGenerator[SessionKey]:
        """The keys of all selected sessions."""
        for app_name in filter(selection.takes_app, self._apps):
            for key in await self._keys_of_app(app_name, selection):
                yield key
