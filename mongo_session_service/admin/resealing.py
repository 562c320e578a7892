"""Re-sealing: stored content that the service's hooks would seal differently now.

Each collection is read once, in the order of its ``_id``. Outdated documents are
rewritten in short transactions, which first compare them with what was read: a document
that has changed meanwhile, for example by an append, is read again. No progress is
stored: what was rewritten is current, and the next call passes over it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from bson.raw_bson import RawBSONDocument

from mongo_session_service.changes.decoder import RESEALED, decode_appended
from mongo_session_service.codec.documents import key_of
from mongo_session_service.codec.hooks import Judge, Owner
from mongo_session_service.codec.resealer import Resealer
from mongo_session_service.errors import (
    ConfigurationError,
    MongoSessionServiceError,
    StorageError,
    quoted,
)
from mongo_session_service.model import validation
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.service import MongoSessionService, connection_of
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.queries import fields_update
from mongo_session_service.storage import replies
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.cooperative import in_slices
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.storage.transactions import Txn, run_transaction, run_write

_RESEALED_AT_ONCE: Final = {
    "sessions": 10,
    "events": 100,
    "user_states": 10,
    "app_states": 10,
}
"""Documents rewritten in one transaction: an append may want any that holds state."""

_SHARED: Final = ("user_states", "app_states")

_DOCUMENTS_PER_PAGE: Final = 100
"""Documents read at once."""


@dataclass(frozen=True, slots=True)
class Resealed:
    """Numbers of documents that :func:`reseal` rewrote, or would rewrite."""

    sessions: int = 0
    """Sessions whose state, or initial state, was old."""
    initial_states: int = 0
    """Large ones, which have documents of their own."""
    events: int = 0
    user_states: int = 0
    app_states: int = 0


async def reseal(
    service: MongoSessionService,
    is_current: Judge,
    progress: Callable[[Resealed], object] | None = None,
    *,
    app_name: str | None = None,
    dry_run: bool = False,
) -> Resealed:
    """Seals again what is stored, with the hooks that the service has now.

    Each value that ``is_current`` does not accept is loaded by ``after_load`` and
    stored by ``before_store``. Before anything is written, the result has to be
    accepted, and ``after_load`` has to return from it what it returned before.

    Agents may run meanwhile: an append is never lost, and no subscription or consumer
    receives anything. The call may be interrupted and repeated. It has done its work
    when a later call returns ``Resealed()``.

    Args:
        service: With both hooks. ``after_load`` reads the old key and the new one,
            ``before_store`` uses the new one.
        is_current: Called as ``after_load`` is, with what is stored and its
            ``Subject``: whether ``before_store`` would seal it like this today.
        progress: Called after each page that has old documents, with the counts so far.
        app_name: Only this app.
        dry_run: Do everything but write.

    Raises:
        ConfigurationError: the service lacks a hook, or transactions.
        InvalidInputError: an argument is of a wrong type.
        StorageError: a document cannot be re-sealed, which is named. What was done
            before stays.
    """
    validation.check_callable("is_current", is_current)
    if progress is not None:
        validation.check_callable("progress", progress)
    validation.check_flag("dry_run", dry_run)
    if app_name is not None:
        validation.check_id("app_name", app_name)
    counts: Counter[str] = Counter()
    async with connection_of(service) as connection:
        if not connection.hooks.has_both:
            message = "reseal needs a service with before_store and after_load."
            raise ConfigurationError(message)
        if not connection.has_transactions:
            message = "reseal needs transactions: an append meanwhile could be lost."
            raise ConfigurationError(message)
        resealer = Resealer(connection.hooks, is_current)
        for name in _RESEALED_AT_ONCE:
            resealing = _Resealing(
                connection, resealer, name, app_name, is_dry_run=dry_run
            )
            async for ids in resealing.rewritten_ids():
                counts.update(_counted_as(name, each) for each in ids)
                if progress is not None:
                    progress(Resealed(**counts))
    return Resealed(**counts)


def _counted_as(name: str, id_: Any) -> str:
    """Name the field of :class:`Resealed` that counts a document."""
    is_initial_state = name == "events" and not id_["revision"]
    return "initial_states" if is_initial_state else name


class _Outdated(NamedTuple):
    """An outdated document, and the changes that seal it again."""

    id: Any
    raw: bytes | memoryview
    """As it was read."""
    changes: Document


@dataclass(frozen=True, slots=True)
class _Resealing:
    """The re-sealing of one collection."""

    connection: Connection
    resealer: Resealer
    name: str
    app_name: str | None
    is_dry_run: bool

    async def rewritten_ids(self) -> AsyncIterator[list[Any]]:
        """Rewrite outdated documents, and yield their ids by pages."""
        after = None
        while page := await self._read_page(after):
            found = await in_slices(self._find_outdated(page))
            outdated = [each for each in found if each]
            done = outdated if self.is_dry_run else await self._rewrite(outdated)
            if done:
                yield [each.id for each in done]
            if len(done) == len(outdated):
                after = _decoded(page[-1])["_id"]
            # Otherwise some have changed meanwhile, and the page is read again.

    async def _read_page(self, after: Any) -> list[RawBSONDocument]:
        page: list[RawBSONDocument] = []
        size = 0
        wanted = self.connection.routed(self._filter_after(after))
        async with self.connection.reading() as session:
            cursor = self._collection(replies.RAW).find(wanted, session=session)
            async for each in cursor.sort("_id", 1).limit(_DOCUMENTS_PER_PAGE):
                page.append(each)
                size += len(each.raw)
                if size >= self.connection.limits.reseal_bytes:
                    break
            await cursor.close()
        return page

    def _filter_after(self, after: Any) -> Document:
        """Select what follows an ``_id``; everything for None."""
        app_name = self.app_name
        if self.name == "app_states":
            only = {} if app_name is None else {"$eq": app_name}
            return {"_id": {"$gt": after or "", **only}}
        return queries.of_app(app_name, after)

    def _collection(self, codec_options: Any = None) -> Any:
        return getattr(self.connection, self.name).with_options(codec_options)

    def _find_outdated(self, page: list[RawBSONDocument]) -> Iterator[_Outdated | None]:
        """Judge each document; None for one that is current, or of another tool."""
        for each in page:
            document = _decoded(each)
            id_ = document["_id"]
            try:
                changes = self._changes(document)
            except MongoSessionServiceError as error:
                parts = id_.values() if isinstance(id_, dict) else [id_]
                shown = ", ".join(quoted(str(part)) for part in parts)
                where = f"{shown} in the collection {self.name!r}"
                raise StorageError(f"{where} cannot be re-sealed: {error}") from None
            yield _Outdated(id_, each.raw, changes) if changes else None

    def _changes(self, document: Document) -> Document | None:
        """Seal what is outdated in a document again."""
        id_, name, resealer = document["_id"], self.name, self.resealer
        if name in _SHARED:
            is_ours = name == "app_states" or tuple(id_) == SessionKey._fields[:2]
            return resealer.shared_state(document) if is_ours else None
        if (
            name == "events"
            and decode_appended(id_, document, resealer.hooks) is not None
        ):
            return resealer.event(document)
        more = ("revision",) if name == "events" else ()
        key = key_of(id_, *more)
        return key and resealer.states(document, Owner.of_session(key))

    async def _rewrite(self, outdated: list[_Outdated]) -> list[_Outdated]:
        """Store what has not changed since it was read, and return that."""
        done: list[_Outdated] = []
        size = _RESEALED_AT_ONCE[self.name]
        for first in range(0, len(outdated), size):
            write = partial(self._write_unchanged, outdated[first : first + size])
            done += await uninterrupted(run_transaction(self.connection, write))
        return done

    async def _write_unchanged(
        self, outdated: list[_Outdated], txn: Txn
    ) -> list[_Outdated]:
        ids = self.connection.routed({"_id": {"$in": [each.id for each in outdated]}})
        found = self._collection(replies.RAW).find(ids, session=txn)
        stored = {each.raw for each in await found.to_list(None)}
        unchanged = [each for each in outdated if each.raw in stored]
        collection = self._collection()
        if unchanged:
            # The change feed sees by this mark that no value of a state has changed.
            mark = {"$inc": {RESEALED: 1}} if self.name in _SHARED else {}
            updates = [
                {"q": {"_id": each.id}, "u": {**fields_update(each.changes), **mark}}
                for each in unchanged
            ]
            command = {"update": collection.name, "updates": updates}
            await run_write(self.connection, command, txn)
        return unchanged


def _decoded(raw: RawBSONDocument) -> Document:
    (document,) = replies.decode_documents([raw.raw])
    return document
