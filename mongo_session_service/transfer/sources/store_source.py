"""Source: this package's own store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from typing import Final

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from typing_extensions import override

from mongo_session_service.codec.bson_values import UnreadableError
from mongo_session_service.codec.documents import (
    FORKED_FROM,
    INITIAL,
    decode_event,
    decode_state,
    log_begins,
)
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.errors import (
    InvalidInputError,
    StorageError,
    TransferError,
)
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import Document, SessionKey, session_key
from mongo_session_service.model.wording import counted
from mongo_session_service.schema.setup import check_version
from mongo_session_service.service import MongoSessionService, connection_of
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.event_log import LogRange, read_log
from mongo_session_service.sessions.history import recorded_initial_state
from mongo_session_service.storage.connection import Connection
from mongo_session_service.transfer.source_items import (
    ALTERED,
    EVERYTHING,
    Item,
    Problem,
    Selection,
    SessionHeader,
    SharedState,
    session_text,
)
from mongo_session_service.transfer.sources.base_source import BaseSource

_SESSIONS_AT_ONCE: Final = 20
"""Sessions read at once."""


class StoreSource(BaseSource):
    """The sessions of a ``MongoSessionService``, which stays open.

    Each session is read up to the revision of its document, so concurrent appends
    neither make it inconsistent nor have to wait.
    """

    def __init__(self, service: MongoSessionService) -> None:
        """Reads nothing yet."""
        self._service = service

    @property
    def name(self) -> str:
        """The database."""
        return f"sessions in database {self.connection.database.name!r}"

    @override
    async def _open(self, exits: AsyncExitStack) -> None:
        # No setup: reading a database with a misspelt name must not create it.
        async with connection_of(self._service) as connection:
            self.connection = connection
            await check_version(self.connection)

    @override
    async def count_events(self, selection: Selection) -> int:
        async with self.connection.translating_errors():
            counting = queries.count_pipeline(_chosen(self.connection, selection))
            found = await self.connection.aggregate(self.connection.sessions, counting)
        return found[0]["events"] if found else 0

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """Shared state, then sessions, each with its events; sorted by id."""
        async with self.connection.translating_errors():
            async for document in self.connection.app_states.find().sort("_id"):
                if selection.takes_app(document["_id"]):
                    yield self._shared(document, document["_id"], None)
            async for document in self.connection.user_states.find().sort("_id"):
                owner = document["_id"]["app_name"], document["_id"]["user_id"]
                if selection.takes_user(*owner):
                    yield self._shared(document, *owner)
            where = _chosen(self.connection, selection)
            sessions = self.connection.sessions
            while page := (
                await sessions.find(where)
                .sort("_id")
                .limit(_SESSIONS_AT_ONCE)
                .to_list(None)
            ):
                where["_id"] = {"$gt": page[-1]["_id"]}
                for document in page:
                    header = await self._header(document)
                    yield header
                    if isinstance(header, Problem):
                        continue
                    async for item in self._events(header):
                        yield item

    async def _events(self, header: SessionHeader) -> AsyncGenerator[Event | Problem]:
        """The events of a session up to its header's revision, in order."""
        key, revision = header.key, header.revision or 0
        found = header.log_begins
        wanted = LogRange(found, revision + 1)
        with suppress(SessionNotFoundError):
            async for page in read_log(self.connection, key, wanted):
                for document in page:
                    found += 1
                    try:
                        yield decode_event(document, self.connection.hooks)
                    except StorageError as error:
                        yield Problem(
                            f"event {found} of {session_text(key)}", str(error)
                        )
        if found < revision:
            most = counted(revision - header.log_begins, "event")
            events = f"{found - header.log_begins} of {most}"
            reason = f"it has {events}; was it just deleted or trimmed?"
            yield Problem(session_text(key), reason)

    async def refuse_sealed(self, selection: Selection) -> None:
        """Require that selected events are not sealed, or that a hook opens them.

        Without a hook, the server looks through their headers until it finds a sealed
        one, which takes far less time than to read them.
        """
        connection = self.connection
        if connection.hooks.after_load is not None:
            return
        chosen = _chosen(connection, selection)
        sealed: list[Document] = [
            {"$match": {**selection.matching("_id."), "hooked": {"$exists": True}}},
            {
                "$project": {
                    "_id": {name: f"$_id.{name}" for name in SessionKey._fields}
                }
            },
            {
                "$lookup": {
                    "from": connection.sessions.name,
                    "localField": "_id",
                    "foreignField": "_id",
                    "pipeline": [{"$match": chosen}, {"$project": {"_id": 1}}],
                    "as": "session",
                }
            },
            {"$match": {"session": {"$ne": []}}},
            {"$limit": 1},
        ]
        async with connection.translating_errors():
            found = await connection.aggregate(connection.events, sealed)
        if found:
            what = session_text(session_key(**found[0]["_id"]))
            raise TransferError(
                f"Nothing was exported: {what} has events that before_store has sealed."
                " Give the service after_load, or the command --after-load"
                " MODULE:FUNCTION: see docs/guide/exporting.md#sealed-content."
            )

    async def keys(self, selection: Selection) -> AsyncGenerator[SessionKey | Problem]:
        """The keys of all selected sessions."""
        async with self.connection.translating_errors():
            async for each in self.connection.sessions.find(
                _chosen(self.connection, selection), {"_id": 1}
            ):
                yield _key(each)

    async def _header(self, document: Document) -> SessionHeader | Problem:
        key = _key(document)
        if isinstance(key, Problem):
            return key
        apart = None
        if INITIAL not in document:
            apart = await self.connection.events.find_one({"_id": key.event_id(0)})
        try:
            owner = Owner.of_session(key)
            initial = recorded_initial_state(document, apart)
            return SessionHeader(
                key,
                decode_state(document["state"], owner, self.connection.hooks),
                update_time=document["update_time"],
                create_time=document["create_time"],
                details=Details.from_document(document),
                initial=decode_state(initial, owner, self.connection.hooks),
                revision=document["revision"],
                log_begins=log_begins(document),
                forked_from=document.get(FORKED_FROM, ()),
            )
        except (KeyError, TypeError, AttributeError, UnreadableError):
            return Problem(session_text(key), ALTERED)

    def _shared(
        self, document: Document, app_name: str, user_id: str | None
    ) -> SharedState | Problem:
        owner = Owner.of_shared(app_name, user_id)
        try:
            state = decode_state(document["state"], owner, self.connection.hooks)
        except (KeyError, UnreadableError):
            empty = SharedState(app_name, user_id, {})
            return Problem(str(empty), ALTERED)
        return SharedState(app_name, user_id, state, document.get("revision"))


def _key(document: Document) -> SessionKey | Problem:
    id_ = document["_id"]
    try:
        return session_key(**id_)
    except (TypeError, InvalidInputError):
        return Problem(f"session document {id_!r}", ALTERED)


def _chosen(connection: Connection, selection: Selection) -> Document:
    where = queries.visible_filter(connection.clock.now())
    if selection.since is not None:
        where["update_time"] = {"$gte": selection.since}
    return where | selection.matching("_id.")
