"""The collections and indexes, as data, and the check that a server has them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from pymongo.errors import CollectionInvalid, OperationFailure

from .database import Connection
from .drivers import Driver
from .errors import ConfigurationError, SchemaVersionError
from .greeting import greeted
from .page_key import load_page_key
from .privileges import Refusal

logger = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1

_MIN_WIRE_VERSION: Final = 13  # MongoDB 5.0, the first with snapshot reads
_WORKS_WITHOUT: Final = {
    13: "the user lacks the privilege",
    11000: "the data holds an event twice",
    85: "another index of the same keys is there, which is left as it is",
    86: "another index of that name is there, which is left as it is",
}
_NAMESPACE_EXISTS: Final = 48


@dataclass(frozen=True, slots=True)
class Index:
    """An index beyond ``_id_``, and the query or promise it is there for."""

    collection: str
    name: str
    keys: tuple[tuple[str, int], ...]
    unique: bool
    serves: str
    sparse: bool = False
    only_with: str | None = None
    """A field without which a document is not in it."""

    def is_like(self, described: dict[str, Any]) -> bool:
        """Whether it is among a collection's indexes, as the driver describes them."""
        there = described.get(self.name)
        return there is not None and (
            [tuple(each) for each in there["key"]] == list(self.keys)
            and bool(there.get("unique")) == self.unique
            and bool(there.get("sparse")) == self.sparse
            and there.get("partialFilterExpression") == self._partial
        )

    @property
    def options(self) -> dict[str, Any]:
        """What it is created with, beside its keys."""
        partial = self._partial
        return {
            "name": self.name,
            "unique": self.unique,
            "sparse": self.sparse,
            **({} if partial is None else {"partialFilterExpression": partial}),
        }

    @property
    def _partial(self) -> dict[str, Any] | None:
        return None if self.only_with is None else {self.only_with: {"$exists": True}}


_BY_CREATION: Final = (
    ("create_time", 1),
    ("_id.user_id", 1),
    ("_id.session_id", 1),
)

INDEXES: Final = (
    Index(
        collection="events",
        name="event_id_once_per_session",
        keys=(
            ("_id.app_name", 1),
            ("_id.user_id", 1),
            ("_id.session_id", 1),
            ("event.id", 1),
        ),
        unique=True,
        serves="an event appended twice is stored once, and found by its id",
    ),
    Index(
        collection="sessions",
        name="expire_time",
        keys=(("expire_time", 1),),
        unique=False,
        sparse=True,
        serves="what has to be removed is found among any number of sessions",
    ),
    Index(
        collection="sessions",
        name="by_user",
        keys=(
            ("_id.app_name", 1),
            ("_id.user_id", 1),
            ("create_time", 1),
            ("_id.session_id", 1),
        ),
        unique=False,
        serves="a page of a user's sessions, of any number",
    ),
    Index(
        collection="sessions",
        name="by_app",
        keys=(("_id.app_name", 1), *_BY_CREATION),
        unique=False,
        serves="a page of an app's sessions, of any number",
    ),
    Index(
        collection="sessions",
        name="by_title",
        keys=(("_id.app_name", 1), ("title", 1), *_BY_CREATION),
        unique=False,
        only_with="title",
        serves="a page of the sessions that have a title",
    ),
    Index(
        collection="sessions",
        name="by_label",
        keys=(("_id.app_name", 1), ("labels", 1), *_BY_CREATION),
        unique=False,
        only_with="labels",
        serves="a page of the sessions that have a label",
    ),
)


async def set_up(connection: Connection) -> bool:
    """Check the server, and create what is missing; safe to repeat and to race.

    Returns whether the indexes are there. Without the privilege to create them, or if
    the data does not allow for one, a warning is logged and the service works without.

    Raises:
        ConfigurationError: the server is too old, or has no transactions.
        SchemaVersionError: the data was written by a newer release.
    """
    if connection.driver is not Driver.MOCK:
        hello = await greeted(connection.client)
        check_server(hello, transactions=connection.has_transactions)
    is_recorded = await check_version(connection)
    try:
        await create_layout(connection)
        if not is_recorded:
            await _record_version(connection)
            await load_page_key(connection)
    except OperationFailure as error:
        if error.code not in _WORKS_WITHOUT:
            raise
        refusal = Refusal.of(str((error.details or {}).get("errmsg")))
        lacking = refusal.lacking(connection.prefix, []) if refusal else []
        logger.warning(
            "Collections or indexes of database %r could not be created: %s%s. The"
            " service works without, but slower; have setup() run once by a user with"
            " the privilege, whose role `mongo-session-service grants` prints.",
            connection.database.name,
            _WORKS_WITHOUT[error.code],
            f" {', '.join(map(str, lacking))}" if lacking else "",
        )
        return False
    return True


def check_server(hello: dict[str, Any], *, transactions: bool) -> None:
    """Refuse a server that cannot keep the promises, from its ``hello`` reply.

    Raises:
        ConfigurationError: it is older than MongoDB 5.0, a replica set that is not
            initiated, or a standalone server while transactions are asked for.
    """
    if hello["maxWireVersion"] < _MIN_WIRE_VERSION:
        message = "MongoDB 5.0 or newer is needed; this server is older. Upgrade it."
        raise ConfigurationError(message)
    if hello.get("isreplicaset"):
        message = "The replica set is not initiated: call rs.initiate() on it once."
        raise ConfigurationError(message)
    is_mongos = hello.get("msg") == "isdbgrid"
    if transactions and not (is_mongos or "setName" in hello):
        message = (
            "This MongoDB server is a standalone: it has no transactions, so an event"
            " and its state could be torn apart. Run it as a replica set (a single"
            " member is enough): start mongod with --replSet rs0, then call"
            " rs.initiate() once. To do without the guarantee, pass"
            " transactions=False."
        )
        raise ConfigurationError(message)


async def create_layout(connection: Connection) -> None:
    """Create what is missing; what is there is never dropped, nor built again."""
    await _create_collections(connection)
    await _create_indexes(connection)


async def _create_collections(connection: Connection) -> None:
    # A transaction that has to create its collection conflicts with all others.
    missing = {
        collection.name
        for collection in (
            connection.sessions,
            connection.events,
            connection.app_states,
            connection.user_states,
            connection.checkpoints,
            connection.leases,
            connection.dead_letters,
            connection.metadata,
        )
    }.difference(await connection.database.list_collection_names())
    for name in missing:
        try:
            await connection.database.create_collection(name)
        except CollectionInvalid:
            pass
        except OperationFailure as error:
            if error.code != _NAMESPACE_EXISTS:
                raise


async def missing_indexes(connection: Connection) -> list[Index]:
    """The indexes that are not there, or not as they should be."""
    found = {
        name: await getattr(connection, name).index_information()
        for name in {index.collection for index in INDEXES}
    }
    return [index for index in INDEXES if not index.is_like(found[index.collection])]


async def _create_indexes(connection: Connection) -> None:
    # To create what is there needs the privilege to do so.
    for index in await missing_indexes(connection):
        collection = getattr(connection, index.collection)
        await collection.create_index(list(index.keys), **index.options)


async def check_version(connection: Connection) -> bool:
    """Refuse data of a newer release; tell if any version is recorded.

    Raises:
        SchemaVersionError: the data was written by a newer release.
    """
    recorded = await connection.metadata.find_one({"_id": "schema"})
    if recorded and recorded["version"] > SCHEMA_VERSION:
        message = (
            f"The data has schema version {recorded['version']}; this release knows"
            f" up to {SCHEMA_VERSION}. Upgrade mongo-session-service."
        )
        raise SchemaVersionError(message)
    return recorded is not None


async def _record_version(connection: Connection) -> None:
    await connection.metadata.update_one(
        {"_id": "schema"}, {"$setOnInsert": {"version": SCHEMA_VERSION}}, upsert=True
    )
