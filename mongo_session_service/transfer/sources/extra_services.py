"""Source: the MongoDB services of adk-extra-services and google-adk-extras.

Both store the same documents. A session holds the merged state that its last writer
saw, with ``app:``, ``user:`` and ``temp:`` keys. Only what events set is in the
collections of shared state, one document per key; what ``create_session`` received
under such keys is only in sessions. This source adds it to the state of the app and the
user, as ADK intends; the session that was updated last wins.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from google.adk.sessions.state import State
from typing_extensions import override

from mongo_session_service.driver.errors import translated
from mongo_session_service.model import scopes
from mongo_session_service.model.records import Document
from mongo_session_service.transfer.records import (
    EVERYTHING,
    Item,
    Problem,
    Selection,
    SessionHeader,
    SharedState,
    named,
)
from mongo_session_service.transfer.sources.adk_rows import header_of, whole_event_of
from mongo_session_service.transfer.sources.mongodb import MongoDbSource, chosen

_OWNED = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)


class ExtraServicesSource(MongoDbSource):
    """The sessions of either of the two packages."""

    layout = "sessions of adk-extra-services or google-adk-extras"
    session_field = "id"
    tie_breaker = "_id"

    @override
    def _is_of_layout(self, session: Document) -> bool:
        return "last_update_time" in session and "revision" not in session

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """Shared state first, then sessions, each with its events."""
        with translated():
            async for app_name in self._apps(selection):
                for shared in await self._shared_states(app_name, selection):
                    yield shared
        async with aclosing(self._sessions(selection)) as sessions:
            async for item in sessions:
                yield item

    async def _apps(self, selection: Selection) -> AsyncGenerator[str]:
        where = chosen(selection, with_user=False)
        names = set(await self._collection("sessions").distinct("app_name", where))
        names.update(await self._collection("app_states").distinct("app_name", where))
        for name in sorted(names):
            yield name

    async def _shared_states(
        self, app_name: str, selection: Selection
    ) -> list[SharedState]:
        """The state of an app and its users: from sessions, then from events."""
        app: dict[str, Any] = {}
        users: dict[str, dict[str, Any]] = {}
        sessions = self._collection("sessions").find(
            {"app_name": app_name}, {"user_id": 1, "state": 1}
        )
        async for each in sessions.sort("last_update_time"):
            state = each.get("state")
            if isinstance(state, dict):
                parts = scopes.split(state)
                app |= parts.app
                if parts.user:
                    users.setdefault(each["user_id"], {}).update(parts.user)
        async for each in self._collection("app_states").find({"app_name": app_name}):
            app[each["key"]] = each["value"]
        async for each in self._collection("user_states").find({"app_name": app_name}):
            users.setdefault(each["user_id"], {})[each["key"]] = each["value"]
        shared = [SharedState(app_name, None, app)] if app else []
        return shared + [
            SharedState(app_name, user_id, state)
            for user_id, state in sorted(users.items())
            if selection.takes_user(app_name, user_id)
        ]

    @override
    def _header(self, document: Document) -> SessionHeader | Problem:
        row = document | {"update_time": document.get("last_update_time", 0.0)}
        header = header_of(row | {"state": document.get("state") or {}})
        if isinstance(header, Problem):
            return header
        state = {
            key: value
            for key, value in header.state.items()
            if not key.startswith(_OWNED)
        }
        return SessionHeader(header.key, state, header.update_time)

    @override
    def _event(self, document: Document) -> Item:
        where = f"event document {document['_id']} of {named(self._key_of(document))}"
        return whole_event_of(where, document.get("raw"))
