"""Source: the MongoDB services of adk-extra-services and google-adk-extras.

Both store the same documents. A session holds the merged state that its last writer
saw, with ``app:``, ``user:`` and ``temp:`` keys. Only what events set is in the
collections of shared state, one document per key; what ``create_session`` received
under such keys is only in sessions. This source adds it to the state of the app and the
user, as ADK intends; the session that was updated last wins.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from typing_extensions import override

from mongo_session_service.model import scopes
from mongo_session_service.model.records import Document
from mongo_session_service.transfer import records
from mongo_session_service.transfer.sources.adk_rows import header_of, whole_event_of
from mongo_session_service.transfer.sources.mongodb import MongoDbSource, chosen


class ExtraServicesSource(MongoDbSource):
    """The sessions of either of the two packages."""

    layout = "sessions of adk-extra-services or google-adk-extras"
    session_field = "id"
    tie_breaker = "_id"

    @override
    def _is_of_layout(self, session: Document) -> bool:
        return "last_update_time" in session and "revision" not in session

    @override
    async def _shared_states(
        self, selection: records.Selection
    ) -> AsyncGenerator[records.Item]:
        where = chosen(selection, with_user=False)
        names = set(await self._collection("sessions").distinct("app_name", where))
        names.update(await self._collection("app_states").distinct("app_name", where))
        for app_name in sorted(names):
            app, users = await self._states_of(app_name)
            if app:
                yield records.SharedState(app_name, None, app)
            for user_id, state in sorted(users.items()):
                if selection.takes_user(app_name, user_id):
                    yield records.SharedState(app_name, user_id, state)

    async def _states_of(
        self, app_name: str
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
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
        return app, users

    @override
    def _header(self, document: Document) -> records.SessionHeader | records.Problem:
        row = document | {"update_time": document.get("last_update_time", 0.0)}
        header = header_of(row | {"state": document.get("state") or {}})
        if isinstance(header, records.Problem):
            return header
        return replace(header, state=scopes.split(header.state).session)

    @override
    def _event(self, document: Document) -> records.Item:
        session = records.named(self._key_of(document))
        where = f"event document {document['_id']} of {session}"
        return whole_event_of(where, document.get("raw"))
