"""Catalog: the collections and indexes that a database has, and creating them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from pymongo import IndexModel
from pymongo.errors import CollectionInvalid, OperationFailure
from pymongo.write_concern import WriteConcern

from mongo_session_service.errors import StorageError
from mongo_session_service.storage.compat import Driver
from mongo_session_service.storage.database import Database
from mongo_session_service.storage.retries import Effect, repeat

Result = TypeVar("Result")

_REASONS: Final = {
    11000: "the data holds an event twice",
    85: "another index of the same keys exists, and is not changed",
    86: "another index of that name exists, and is not changed",
}
_NAMESPACE_EXISTS: Final = 48
_PRIMARY_ONLY: Final = WriteConcern(w=1)
"""Whoever creates something writes to a document after it: a majority confirms that,
and by the order of the oplog all that came before."""


class NotCreatedError(StorageError):
    """Something is in the place of an index; the message is what that is."""


async def collection_names(database: Database) -> set[str]:
    """Return the names of the service's collections, without its prefix."""
    names = await _repeat(database, database.database.list_collection_names)
    prefix = database.prefix
    return {each.removeprefix(prefix) for each in names if each.startswith(prefix)}


async def index_information(database: Database, collection: str) -> dict[str, Any]:
    """Return the keys and options of each index, by name."""
    return await _repeat(database, database.collection(collection).index_information)


async def count_documents(database: Database, collection: str) -> int:
    """Estimate the number of documents, without reading them."""
    counted = database.collection(collection).estimated_document_count
    return await _repeat(database, counted)


async def create_collection(database: Database, collection: str) -> None:
    """Create a collection, unless it exists."""
    is_mock = database.driver is Driver.MOCK
    options: dict[str, Any] = {"write_concern": _PRIMARY_ONLY, "check_exists": False}

    async def create() -> None:
        with suppress(CollectionInvalid):
            try:
                await database.database.create_collection(
                    database.prefix + collection, **({} if is_mock else options)
                )
            except OperationFailure as error:
                if error.code != _NAMESPACE_EXISTS:
                    raise

    await _repeat(database, create)


async def create_indexes(
    database: Database,
    collection: str,
    indexes: Sequence[tuple[list[tuple[str, int]], dict[str, Any]]],
) -> None:
    """Create indexes, each of keys and options, and their collection.

    Raises:
        NotCreatedError: of several none may be created.
    """
    target = database.collection(collection)
    if database.driver is not Driver.MOCK:
        target = target.with_options(write_concern=_PRIMARY_ONLY)
    models = [IndexModel(keys, **options) for keys, options in indexes]

    async def create() -> None:
        try:
            await target.create_indexes(models)
        except OperationFailure as error:
            if error.code not in _REASONS:
                raise
            raise NotCreatedError(_REASONS[error.code]) from None

    await _repeat(database, create)


async def _repeat(database: Database, work: Callable[[], Awaitable[Result]]) -> Result:
    # What is created twice is there once.
    return await repeat(database.client, work, Effect.READ, patient=False)
