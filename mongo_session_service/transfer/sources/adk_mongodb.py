"""Source: ADK's ``MongoDbSessionService``, in the layout of google-adk 2.13."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError as DriverConfigurationError
from typing_extensions import override

from mongo_session_service.errors import SourceError
from mongo_session_service.model.records import Document
from mongo_session_service.storage.retries import ErrorTranslation
from mongo_session_service.storage.uri import open_client
from mongo_session_service.transfer.source_items import (
    EVERYTHING,
    Item,
    Problem,
    Selection,
)
from mongo_session_service.transfer.sources import adk_rows
from mongo_session_service.transfer.sources.base_source import BaseSource

_LAYOUT: Final = "sessions of ADK's MongoDbSessionService"
_SESSIONS_TOGETHER: Final = 50
"""Sessions per reply. The cursor waits while their events are read, and MongoDB closes
cursors that are idle for ten minutes."""


class AdkMongoDbSource(BaseSource):
    """The sessions of ADK's own MongoDB service."""

    def __init__(
        self, uri: str, *, database: str | None = None, prefix: str = ""
    ) -> None:
        """Connects to nothing yet.

        Args:
            uri: The server.
            database: The database's name; by default the URI's.
            prefix: The prefix of its collection names.

        Raises:
            ConfigurationError: the URI cannot be used.
            SourceError: no database is named.
        """
        self._client: AsyncMongoClient[Any] = open_client(uri)
        try:
            self._database = self._client.get_default_database()
        except DriverConfigurationError:
            if not database:
                message = "Name the source's database, in its URI or as an option."
                raise SourceError(message) from None
        if database:
            self._database = self._client[database]
        self._prefix = prefix

    @property
    def name(self) -> str:
        """The database, without its server."""
        return f"{_LAYOUT} in database {self._database.name!r}"

    def _collection(self, name: str) -> Any:
        return self._database[self._prefix + name]

    @override
    async def _open(self, exits: AsyncExitStack) -> None:
        exits.push_async_callback(self._client.close)
        async with ErrorTranslation(self._client):
            session = await self._collection("sessions").find_one()
        if session is None:
            return
        is_known = isinstance(session["_id"], dict) and "revision" in session
        if not is_known or "id" not in session:
            raise SourceError(
                f"Collection {self._prefix + 'sessions'!r} of database"
                f" {self._database.name!r} does not hold {_LAYOUT}, as google-adk 2.13"
                " stores them. Another layout is read through the service that wrote"
                " it: `import service` (ServiceSource)."
            )

    @override
    async def count_events(self, selection: Selection) -> int | None:
        if selection.since is not None:
            return None
        async with ErrorTranslation(self._client):
            events: Any = self._collection("events")
            return int(await events.count_documents(selection.matching()))

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """Shared state first, then sessions by id, each with its events."""
        async with ErrorTranslation(self._client):
            for part in (self._shared_states, self._sessions):
                async with aclosing(part(selection)) as items:
                    async for item in items:
                        yield item

    async def _shared_states(self, selection: Selection) -> AsyncGenerator[Item]:
        async for document in self._collection("app_states").find():
            if selection.takes_app(document["_id"]):
                yield _shared_state(document["_id"], None, document)
        async for document in self._collection("user_states").find():
            owner = document["_id"]["app_name"], document["_id"]["user_id"]
            if selection.takes_user(*owner):
                yield _shared_state(*owner, document)

    async def _sessions(self, selection: Selection) -> AsyncGenerator[Item]:
        found = self._collection("sessions").find(selection.matching()).sort("_id")
        async with found.batch_size(_SESSIONS_TOGETHER) as documents:
            async for document in documents:
                ids = [document.get(name) for name in ("app_name", "user_id", "id")]
                if not all(isinstance(each, str) for each in ids):
                    place = f"document {document['_id']!r} of {self._prefix}sessions"
                    yield Problem(place, "it does not name app, user and session")
                    continue
                header = adk_rows.header_of(document)
                if isinstance(header, Problem):
                    yield header
                elif selection.takes(header.key, header.update_time):
                    yield header
                    order = {"timestamp": 1, "revision": 1}
                    events = self._collection("events").find(header.key.id).sort(order)
                    async with events:
                        async for each in events:
                            where = f"event {each['_id']!r}"
                            event = each.get("event_data")
                            yield adk_rows.whole_event_of(where, event)


def _shared_state(app_name: str, user_id: str | None, document: Document) -> Item:
    state = document.get("state") or {}
    user = {} if user_id is None else {"user_id": user_id}
    return adk_rows.shared_state_of({"app_name": app_name, **user, "state": state})
