"""Base of sources in MongoDB: a client, and two sorted streams read as one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, AsyncMongoClient
from pymongo.errors import ConfigurationError as DriverConfigurationError
from typing_extensions import override

from mongo_session_service.driver.errors import translated
from mongo_session_service.driver.uri import open_client
from mongo_session_service.errors import SourceError
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.transfer.records import (
    EVERYTHING,
    Item,
    Problem,
    Selection,
    SessionHeader,
    Totals,
    named,
)
from mongo_session_service.transfer.sources.base import BaseSource

_KEY: Final = ("app_name", "user_id", "id")
_TOGETHER: Final = {"sessions": 50, "events": 500}
"""Documents per reply. The cursor of sessions waits while their events are read, and
MongoDB closes cursors that are idle for ten minutes."""


class MongoDbSource(BaseSource):
    """Sessions and events in two collections that name app, user and session.

    Both are read sorted by session, without a query per session. The order is
    descending, since that is what the index of ADK's service supports.
    """

    layout: str
    """A description of the layout, for people."""
    session_field: str
    """The field of the session's id in documents of events."""
    tie_breaker: str
    """The field that orders events with the same time."""

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
        return f"{self.layout} in database {self._database.name!r}"

    def _collection(self, name: str) -> Any:
        return self._database[self._prefix + name]

    @override
    async def _open(self) -> None:
        with translated():
            session = await self._collection("sessions").find_one()
        if session is not None and not self._is_of_layout(session):
            raise SourceError(
                f"Collection {self._prefix + 'sessions'!r} of database"
                f" {self._database.name!r} does not hold {self.layout}."
            )

    def _is_of_layout(self, session: Document) -> bool:
        raise NotImplementedError

    def _shared_states(self, selection: Selection) -> AsyncGenerator[Item]:
        raise NotImplementedError

    def _header(self, document: Document) -> SessionHeader | Problem:
        raise NotImplementedError

    def _event(self, document: Document) -> Item:
        raise NotImplementedError

    @override
    async def totals(self, selection: Selection) -> Totals:
        query = chosen(selection)
        with translated():
            return Totals(
                await self._collection("sessions").count_documents(query),
                await self._collection("events").count_documents(query),
            )

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """Shared state first, then sessions, each with its events."""
        # A query per session for a few recent sessions, else one pass over all events.
        sessions = self._merged if selection.since is None else self._looked_up
        with translated():
            for part in (self._shared_states(selection), sessions(selection)):
                async with aclosing(part) as items:
                    async for item in items:
                        yield item

    async def _looked_up(self, selection: Selection) -> AsyncGenerator[Item]:
        async with aclosing(self._headers(selection)) as headers:
            async for header in headers:
                yield header
                if isinstance(header, SessionHeader):
                    where = dict(zip(self._event_key, header.key, strict=True))
                    async for each in self._sorted("events", where, self._event_key):
                        yield each if isinstance(each, Problem) else self._event(each)

    async def _merged(self, selection: Selection) -> AsyncGenerator[Item]:
        every = self._sorted("events", chosen(selection), self._event_key)
        async with (
            aclosing(self._headers(selection)) as headers,
            aclosing(every) as events,
        ):
            event = await anext(events, None)
            async for header in headers:
                yield header
                if isinstance(header, Problem):
                    continue
                # Events that sort before it belong to deleted sessions.
                while event:
                    if isinstance(event, Problem):
                        yield event
                    elif (key := self._key_of(event)) == header.key:
                        yield self._event(event)
                    elif key < header.key:
                        break
                    event = await anext(events, None)
            while event:
                if isinstance(event, Problem):
                    yield event
                event = await anext(events, None)

    async def _headers(
        self, selection: Selection
    ) -> AsyncGenerator[SessionHeader | Problem]:
        last: SessionKey | None = None
        found = self._sorted("sessions", chosen(selection), _KEY)
        async with aclosing(found) as documents:
            async for each in documents:
                header = each if isinstance(each, Problem) else self._header(each)
                if isinstance(header, Problem):
                    yield header
                elif header.key == last:
                    # Other services have no index that prevents this.
                    yield Problem(named(last), "there is a second one")
                elif selection.takes(header.key, header.update_time):
                    last = header.key
                    yield header

    @property
    def _event_key(self) -> tuple[str, ...]:
        return (*_KEY[:2], self.session_field)

    def _key_of(self, event: Document) -> SessionKey:
        return SessionKey(*(event[name] for name in self._event_key))

    async def _sorted(
        self, name: str, where: Document, ids: tuple[str, ...]
    ) -> AsyncGenerator[Document | Problem]:
        order: dict[str, Any] = dict.fromkeys(ids, DESCENDING)
        if name == "events":
            order |= {"timestamp": ASCENDING, self.tie_breaker: ASCENDING}
        else:
            order["_id"] = ASCENDING
        cursor = await self._collection(name).aggregate(
            [{"$match": where}, {"$sort": order}],
            allowDiskUse=True,
            batchSize=_TOGETHER[name],
        )
        async with cursor:
            async for document in cursor:
                if all(isinstance(document.get(each), str) for each in ids):
                    yield document
                else:
                    place = f"document {document['_id']!r} of {self._prefix + name!r}"
                    yield Problem(place, "it does not name app, user and session")

    @override
    async def _close(self) -> None:
        await self._client.close()


def chosen(selection: Selection, *, with_user: bool = True) -> Document:
    """The filter for the apps and users selected."""
    where: Document = {}
    if selection.apps:
        where["app_name"] = {"$in": sorted(selection.apps)}
    if selection.users and with_user:
        where["user_id"] = {"$in": sorted(selection.users)}
    return where
