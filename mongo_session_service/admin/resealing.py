"""Re-sealing: everything stored that the service's hooks would seal otherwise now.

Each collection is walked once, in the order of its ``_id``. What is old is rewritten in
short transactions, each of which first compares the documents with what was read: what
has changed meanwhile, as by an append, is read again. No progress is stored. What was
done is current, and the next call passes it over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, NamedTuple

from bson.raw_bson import RawBSONDocument
from typing_extensions import override

from mongo_session_service.backend import backend_of
from mongo_session_service.changes.decoder import RESEALED, appended, session_key
from mongo_session_service.codec import replies
from mongo_session_service.codec.hooks import Judge, Owner
from mongo_session_service.codec.resealer import Resealer
from mongo_session_service.consumers import dead_letters
from mongo_session_service.driver.cancellation import uninterrupted
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.slices import in_slices
from mongo_session_service.driver.transactions import Txn, run_transaction, run_write
from mongo_session_service.errors import (
    ConfigurationError,
    MongoSessionServiceError,
    StorageError,
    quoted,
)
from mongo_session_service.model import validation
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.service import MongoSessionService
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.details import fields_update

_PAGE: Final = 100
"""Documents read at once."""

_PAGE_BYTES: Final = 4_000_000
"""Bytes after which a page ends, with the document that reaches them."""

_FEW: Final = 10
"""Documents of state rewritten in one transaction: an append may want any of them."""

_SILENT: Final = {"$inc": {RESEALED: 1}}
"""By which the change feed sees that no value has changed."""


@dataclass(frozen=True, slots=True)
class Resealed:
    """How many documents :func:`reseal` rewrote, or would rewrite."""

    sessions: int = 0
    """Those whose state, or initial state, was old."""
    initial_states: int = 0
    """Large ones, which have documents of their own."""
    events: int = 0
    user_states: int = 0
    app_states: int = 0
    dead_letters: int = 0


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
    resealed = Resealed()
    async with backend_of(service).call(sets_up=False) as backend:
        at = backend.connection
        _check(at)
        resealer = Resealer(at.hooks, is_current)
        for kind in _WALKS:
            walk = kind(at, resealer, app_name)
            async for ids in walk.steps(is_dry_run=dry_run):
                resealed = _sum(resealed, walk.counts(ids))
                if progress is not None:
                    progress(resealed)
    return resealed


def _check(at: Connection) -> None:
    if not at.hooks.has_both:
        message = "reseal needs a service with before_store and after_load."
        raise ConfigurationError(message)
    if not at.has_transactions:
        message = "reseal needs transactions: an append meanwhile could be lost."
        raise ConfigurationError(message)


def _sum(resealed: Resealed, counts: Counter[str]) -> Resealed:
    totals = {name: getattr(resealed, name) + it for name, it in counts.items()}
    return replace(resealed, **totals)


class _Renewal(NamedTuple):
    """A document that is old, and what is to be of it."""

    id: Any
    raw: bytes | memoryview
    """As it was read."""
    changes: Document


class _Walk:
    """One collection: how its documents are found, renewed and stored."""

    name: ClassVar[str]
    """The collection, and the field of :class:`Resealed` that counts it."""
    together: ClassVar[int] = _FEW
    """Documents rewritten in one transaction."""
    mark: ClassVar[Document] = {}
    """What is updated beside the content."""

    def __init__(
        self, at: Connection, resealer: Resealer, app_name: str | None
    ) -> None:
        self.at = at
        self.resealer = resealer
        self.app_name = app_name
        self.collection: Any = getattr(at, self.name)

    def wanted(self, after: Any) -> Document:
        """The filter of what follows an ``_id``; of everything for None."""
        return queries.routed(self.at, queries.of_app(self.app_name, after))

    def renewed(self, document: Document) -> Document | None:
        """The fields that change in a document, if any do."""
        raise NotImplementedError

    async def store(self, old: list[_Renewal], txn: Txn) -> None:
        """Make documents what they are to be."""
        updates = [
            {
                "q": {"_id": each.id},
                "u": {**fields_update(each.changes), **self.mark},
            }
            for each in old
        ]
        command = {"update": self.collection.name, "updates": updates}
        await run_write(self.at, command, txn)

    def counts(self, ids: list[Any]) -> Counter[str]:
        """How many of some documents each field of :class:`Resealed` counts."""
        return Counter({self.name: len(ids)})

    async def steps(self, *, is_dry_run: bool) -> AsyncIterator[list[Any]]:
        """Go through the collection; the ``_id``s of what was rewritten, by pages.

        Raises:
            StorageError: a document cannot be re-sealed.
        """
        after = None
        while page := await self._page(after):
            old = [each for each in await in_slices(self._renewals(page)) if each]
            done = old if is_dry_run else await self._rewrite(old)
            if done:
                yield [each.id for each in done]
            if len(done) == len(old):
                after = _decoded(page[-1])["_id"]
            # Otherwise some have changed meanwhile, and the page is read again.

    async def _page(self, after: Any) -> list[RawBSONDocument]:
        found: list[RawBSONDocument] = []
        size = 0
        async with self.at.reading() as session:
            cursor = self._raw.find(self.wanted(after), session=session)
            async for each in cursor.sort("_id", 1).limit(_PAGE):
                found.append(each)
                size += len(each.raw)
                if size >= _PAGE_BYTES:
                    break
            await cursor.close()
        return found

    @property
    def _raw(self) -> Any:
        return self.collection.with_options(codec_options=replies.RAW)

    def _renewals(self, page: list[RawBSONDocument]) -> Iterator[_Renewal | None]:
        """What is to be done about each document; None for nothing."""
        for each in page:
            document = _decoded(each)
            id_ = document["_id"]
            try:
                changes = self.renewed(document)
            except MongoSessionServiceError as error:
                parts = id_.values() if isinstance(id_, dict) else [id_]
                name = ", ".join(quoted(str(part)) for part in parts)
                where = f"{name} in the collection {self.collection.name!r}"
                message = f"{where} cannot be re-sealed: {error}"
                raise StorageError(message) from None
            yield _Renewal(id_, each.raw, changes) if changes else None

    async def _rewrite(self, old: list[_Renewal]) -> list[_Renewal]:
        """Store what has not changed since it was read; that is returned."""
        done: list[_Renewal] = []
        for first in range(0, len(old), self.together):
            write = partial(self._write, old[first : first + self.together])
            done += await uninterrupted(run_transaction(self.at, write))
        return done

    async def _write(self, old: list[_Renewal], txn: Txn) -> list[_Renewal]:
        ids = {"_id": {"$in": [each.id for each in old]}}
        where = queries.routed(self.at, ids)
        found = await self._raw.find(where, session=txn).to_list(None)
        there = {each.raw for each in found}
        same = [each for each in old if each.raw in there]
        if same:
            await self.store(same, txn)
        return same


def _decoded(raw: RawBSONDocument) -> Document:
    (document,) = replies.decoded([raw.raw])
    return document


class _Sessions(_Walk):
    name = "sessions"

    @override
    def renewed(self, document: Document) -> Document | None:
        key = session_key(document["_id"], SessionKey._fields)
        return key and self.resealer.states(document, Owner.of_session(key))


class _Events(_Walk):
    name = "events"
    together = _PAGE

    @override
    def renewed(self, document: Document) -> Document | None:
        id_ = document["_id"]
        if appended(id_, document, self.resealer.hooks) is not None:
            return self.resealer.event(document)
        key = session_key(id_, (*SessionKey._fields, "revision"))
        return key and self.resealer.states(document, Owner.of_session(key))

    @override
    def counts(self, ids: list[Any]) -> Counter[str]:
        return Counter(
            self.name if each["revision"] else "initial_states" for each in ids
        )


class _UserStates(_Walk):
    name = "user_states"
    mark = _SILENT

    @override
    def renewed(self, document: Document) -> Document | None:
        id_ = document["_id"]
        if tuple(id_) != SessionKey._fields[:2]:
            return None
        return self.resealer.states(document, Owner.of_shared(**id_))


class _AppStates(_Walk):
    name = "app_states"
    mark = _SILENT

    @override
    def wanted(self, after: Any) -> Document:
        only = {} if self.app_name is None else {"$eq": self.app_name}
        return {"_id": {"$gt": after or "", **only}}

    @override
    def renewed(self, document: Document) -> Document | None:
        return self.resealer.states(document, Owner.of_shared(document["_id"]))


class _DeadLetters(_Walk):
    name = "dead_letters"

    @override
    def wanted(self, after: Any) -> Document:
        only = {} if self.app_name is None else {"_id.app_name": self.app_name}
        return {"_id": {"$gt": after or {}}, **only}

    @override
    def renewed(self, document: Document) -> Document | None:
        return dead_letters.resealed(document, self.resealer)

    @override
    async def store(self, old: list[_Renewal], txn: Txn) -> None:
        for each in old:
            await self.collection.delete_one({"_id": each.id}, session=txn)
            await self.collection.insert_one(each.changes, session=txn)


_WALKS: Final = (_Sessions, _Events, _UserStates, _AppStates, _DeadLetters)
