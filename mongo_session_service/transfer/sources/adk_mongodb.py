"""Source: ADK's ``MongoDbSessionService``, as of 2.13 and in its earlier layout.

In the earlier layout ids are strings, ``app/user/session/event``; now they are
documents. Both layouts have fields for app, user and session, except in user states.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from typing_extensions import override

from mongo_session_service.model.records import Document
from mongo_session_service.transfer import records
from mongo_session_service.transfer.sources import adk_rows
from mongo_session_service.transfer.sources.mongodb import MongoDbSource

_SLASH: Final = "/"


class AdkMongoDbSource(MongoDbSource):
    """The sessions of ADK's own MongoDB service, in either of its layouts."""

    layout = "sessions of ADK's MongoDbSessionService"
    session_field = "session_id"
    tie_breaker = "revision"

    @override
    def _is_of_layout(self, session: Document) -> bool:
        if isinstance(session["_id"], str):
            # These events have no revision, and no index supports another order.
            self.tie_breaker = "_id"
        return "id" in session and "revision" in session

    @override
    async def _shared_states(
        self, selection: records.Selection
    ) -> AsyncGenerator[records.Item]:
        async for document in self._collection("app_states").find():
            if selection.takes_app(document["_id"]):
                yield _shared(document["_id"], None, document)
        async for document in self._collection("user_states").find():
            async for app_name, user_id in self._owners(document["_id"]):
                if selection.takes_user(app_name, user_id):
                    yield _shared(app_name, user_id, document)

    async def _owners(self, id_: str | Document) -> AsyncGenerator[tuple[str, str]]:
        """The apps and users whose state a document holds.

        In the earlier layout several users may share a document, since the service
        joined names by slashes: all users whose names give this id, and have sessions.
        """
        if not isinstance(id_, str):
            yield id_["app_name"], id_["user_id"]
            return
        parts = id_.split(_SLASH)
        cuts = range(1, len(parts))
        pairs = [(_SLASH.join(parts[:cut]), _SLASH.join(parts[cut:])) for cut in cuts]
        if len(pairs) == 1:
            yield pairs[0]
            return
        for app_name, user_id in pairs:
            owner = {"app_name": app_name, "user_id": user_id}
            if await self._collection("sessions").find_one(owner, {"_id": 1}):
                yield app_name, user_id

    @override
    def _header(self, document: Document) -> records.SessionHeader | records.Problem:
        return adk_rows.header_of(document)

    @override
    def _event(self, document: Document) -> records.Item:
        where = f"event {document['_id']!r}"
        return adk_rows.whole_event_of(where, document.get("event_data"))


def _shared(app_name: str, user_id: str | None, document: Document) -> records.Item:
    state = document.get("state") or {}
    row = {"app_name": app_name, "user_id": user_id, "state": state}
    return adk_rows.shared_state_of(row)
