"""Source: this package's own store."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.platform import time as platform_time
from typing_extensions import override

from mongo_session_service.codec.bson_values import UnreadableError
from mongo_session_service.codec.documents import (
    INITIAL,
    decode_event,
    decode_state,
    loaded_fields,
    log_begins,
)
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.errors import InvalidInputError, StorageError
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import Document, SessionKey, session_key
from mongo_session_service.model.wording import counted
from mongo_session_service.schema.version import check_version
from mongo_session_service.service import MongoSessionService, backend_of
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.event_log import LogRange, read_log
from mongo_session_service.sessions.history import recorded
from mongo_session_service.transfer import records
from mongo_session_service.transfer.sources import stored_form
from mongo_session_service.transfer.sources.base import BaseSource

_SESSIONS_TOGETHER: Final = 20


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
        return f"sessions in database {self._at.database.name!r}"

    @override
    async def _open(self) -> None:
        # No setup: reading a database with a misspelt name must not create it.
        async with backend_of(self._service).call(sets_up=False) as opened:
            self._at = opened.connection
            await check_version(self._at)

    @override
    async def totals(self, selection: records.Selection) -> records.Totals:
        async with self._at.call():
            counting = queries.counting(_chosen(selection))
            found = await self._at.aggregate(self._at.sessions, counting)
        counts = found[0] if found else {"sessions": 0, "events": 0}
        return records.Totals(counts["sessions"], counts["events"])

    async def read(
        self, selection: records.Selection = records.EVERYTHING
    ) -> AsyncGenerator[records.Item]:
        """Shared state, then sessions, each with its events; sorted by id."""
        async with self._at.call():
            async for document in self._at.app_states.find().sort("_id"):
                if selection.takes_app(document["_id"]):
                    yield self._shared(document, document["_id"], None)
            async for document in self._at.user_states.find().sort("_id"):
                owner = document["_id"]["app_name"], document["_id"]["user_id"]
                if selection.takes_user(*owner):
                    yield self._shared(document, *owner)
            where = _chosen(selection)
            while page := await self._sessions(where):
                where["_id"] = {"$gt": page[-1]["_id"]}
                for document in page:
                    header = await self._header(document)
                    yield header
                    if isinstance(header, records.Problem):
                        continue
                    async for item in self._events(header):
                        if not isinstance(item, records.StoredEvent):
                            yield item

    async def _sessions(self, where: Document) -> list[Document]:
        cursor = self._at.sessions.find(where).sort("_id").limit(_SESSIONS_TOGETHER)
        page: list[Document] = await cursor.to_list(None)
        return page

    async def _events(
        self, header: records.SessionHeader, *, is_exact: bool = False
    ) -> AsyncGenerator[records.Item | records.StoredEvent]:
        """The events of a session up to its header's revision, in order.

        If ``is_exact``, with their stored fields, and problems where they are odd.
        """
        key, revision = header.key, header.revision or 0
        found = header.log_begins
        wanted = LogRange(found, revision + 1)
        with suppress(SessionNotFoundError):
            async for page in read_log(self._at, key, wanted):
                for document in page:
                    found += 1
                    place = f"event {found} of {records.named(key)}"
                    try:
                        event = decode_event(document, self._at.hooks)
                    except StorageError as error:
                        yield records.Problem(place, str(error))
                        continue
                    if not is_exact:
                        yield event
                        continue
                    if stored_form.is_odd_event(document, key, found):
                        yield records.Problem(place, records.ODD)
                    fields = loaded_fields(document["event"], key, self._at.hooks)
                    yield records.StoredEvent(event, fields)
        if found < revision:
            most = counted(revision - header.log_begins, "event")
            events = f"{found - header.log_begins} of {most}"
            reason = f"it has {events}; was it just deleted or trimmed?"
            yield records.Problem(records.named(key), reason)

    async def find(
        self, key: SessionKey
    ) -> tuple[records.SessionHeader, records.Events] | records.Problem:
        """One session and its events."""
        async with self._at.call():
            document = await self._at.sessions.find_one(
                {"_id": key.id, **queries.visible(platform_time.get_time())}
            )
            if document is None:
                return records.Problem(records.named(key), records.MISSING)
            if field := stored_form.odd_session(document):
                return records.Problem(
                    records.named(key), f"its {field} {records.ODD[3:]}"
                )
            header = await self._header(document)
        if isinstance(header, records.Problem):
            return header
        return header, self._events(header, is_exact=True)

    async def keys(
        self, selection: records.Selection
    ) -> AsyncGenerator[SessionKey | records.Problem]:
        """The keys of all selected sessions."""
        async with self._at.call():
            async for each in self._at.sessions.find(_chosen(selection), {"_id": 1}):
                yield _key(each)

    async def find_shared(
        self, app_name: str, user_id: str | None
    ) -> records.SharedState | records.Problem:
        """The state of an app, or of one of its users; empty if it has none."""
        async with self._at.call():
            document = await (
                self._at.app_states.find_one({"_id": app_name})
                if user_id is None
                else self._at.user_states.find_one(
                    {"_id": queries.user_state_id(app_name, user_id)}
                )
            )
        empty = records.SharedState(app_name, user_id, {})
        if document is None:
            return empty
        if field := stored_form.odd_shared(document):
            return records.Problem(str(empty), f"its {field} {records.ODD[3:]}")
        return self._shared(document, app_name, user_id)

    async def _header(
        self, document: Document
    ) -> records.SessionHeader | records.Problem:
        key = _key(document)
        if isinstance(key, records.Problem):
            return key
        apart = None
        if INITIAL not in document:
            apart = await self._at.events.find_one({"_id": key.event_id(0)})
            if apart and not stored_form.is_beginning(apart, key):
                apart = None
        try:
            owner = Owner.of_session(key)
            initial = recorded(document, apart)
            return records.SessionHeader(
                key,
                decode_state(document["state"], owner, self._at.hooks),
                update_time=document["update_time"],
                create_time=document["create_time"],
                details=Details.of(document),
                initial=decode_state(initial, owner, self._at.hooks),
                revision=document["revision"],
                log_begins=log_begins(document),
            )
        except (KeyError, TypeError, AttributeError, UnreadableError):
            return records.Problem(records.named(key), records.ODD)

    def _shared(
        self, document: Document, app_name: str, user_id: str | None
    ) -> records.SharedState | records.Problem:
        owner = Owner.of_shared(app_name, user_id)
        try:
            state = decode_state(document["state"], owner, self._at.hooks)
        except (KeyError, UnreadableError):
            empty = records.SharedState(app_name, user_id, {})
            return records.Problem(str(empty), records.ODD)
        return records.SharedState(app_name, user_id, state, document.get("revision"))


def _key(document: Document) -> SessionKey | records.Problem:
    id_ = document["_id"]
    try:
        return session_key(**id_)
    except (TypeError, InvalidInputError):
        return records.Problem(f"session document {id_!r}", records.ODD)


def _chosen(selection: records.Selection) -> Document:
    where = queries.visible(platform_time.get_time())
    if selection.since is not None:
        where["update_time"] = {"$gte": selection.since}
    if selection.apps:
        where["_id.app_name"] = {"$in": sorted(selection.apps)}
    if selection.users:
        where["_id.user_id"] = {"$in": sorted(selection.users)}
    return where
