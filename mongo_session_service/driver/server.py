"""Server handshake and privileges: is a server usable, and what may its user do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pymongo.errors import PyMongoError

from mongo_session_service.driver.compat import renewing
from mongo_session_service.driver.errors import certificate_refusal, translated
from mongo_session_service.driver.privileges import FEATURES, Privilege, needs
from mongo_session_service.errors import (
    ConfigurationError,
    NotAuthorizedError,
    Refusal,
)

if TYPE_CHECKING:
    from mongo_session_service.driver.connection import Connection
    from mongo_session_service.model.records import Document

_POLL: Final = 0.1  # seconds
_MIN_WIRE_VERSION: Final = 13  # MongoDB 5.0, the first with snapshot reads
_ACTIONS: Final = {
    "$merge": ("find", "insert", "update"),
    "aggregate": ("find", "changeStream", "collStats"),
    "count": ("find",),
    "create": ("createCollection",),
    "createIndexes": ("createIndex",),
    "delete": ("remove",),
    "find": ("find",),
    "findAndModify": ("find", "update", "insert", "remove"),
    "getMore": ("find", "changeStream"),
    "insert": ("insert",),
    "listCollections": ("listCollections",),
    "listIndexes": ("listIndexes",),
    "update": ("update", "insert", "find"),
}
"""Actions that a command may need."""


async def greeted(client: Any) -> dict[str, Any]:
    """The server's reply to ``hello``, in which it describes itself.

    Raises:
        ConfigurationError: no server has a certificate that is accepted. The driver
            would retry that for half a minute, as if the server were down.
        PyMongoError: no server has answered.
    """
    asking = asyncio.ensure_future(client.admin.command("hello"))
    try:
        while not (await asyncio.wait([asking], timeout=_POLL))[0]:
            servers = client.topology_description.server_descriptions().values()
            refusals = [certificate_refusal(str(each.error)) for each in servers]
            if refusals and all(refusals):
                raise ConfigurationError(refusals[0])
        hello: dict[str, Any] = asking.result()
        return hello
    finally:
        asking.cancel()


def check_server(hello: dict[str, Any], *, transactions: bool) -> None:
    """Refuse a server that cannot keep the promises, from its ``hello`` reply."""
    if hello["maxWireVersion"] < _MIN_WIRE_VERSION:
        message = "MongoDB 5.0 or newer is needed; this server is older. Upgrade it."
        raise ConfigurationError(message)
    if hello.get("isreplicaset"):
        message = "The replica set is not initiated: call rs.initiate() on it once."
        raise ConfigurationError(message)
    if transactions and is_standalone(hello):
        message = (
            "This MongoDB server is a standalone: it has no transactions, so an event"
            " and its state could be torn apart. Run it as a replica set (a single"
            " member is enough): start mongod with --replSet rs0, then call"
            " rs.initiate() once."
        )
        hint = "To do without the guarantee, pass transactions=False."
        raise ConfigurationError(message, hint=hint)


def is_mongos(hello: dict[str, Any]) -> bool:
    """Whether a server is the router of a sharded cluster."""
    return hello.get("msg") == "isdbgrid"


def is_standalone(hello: dict[str, Any]) -> bool:
    """Whether a server belongs to no replica set, nor to a sharded cluster."""
    return "setName" not in hello and not is_mongos(hello)


class Login(NamedTuple):
    """The users a connection is authenticated as, and their privileges."""

    users: list[str]
    privileges: list[Document]
    """As MongoDB lists them."""


async def login_of(connection: Connection) -> Login:
    """Who is logged in; every user may ask this."""
    asking = connection.client.admin.command("connectionStatus", showPrivileges=True)
    about = (await asking)["authInfo"]
    users = [each["user"] for each in about["authenticatedUsers"]]
    return Login(users, about["authenticatedUserPrivileges"])


@asynccontextmanager
async def naming_privileges(connection: Connection) -> AsyncIterator[None]:
    """Raise the driver's errors as this package's, naming missing privileges.

    The server itself names the command it has refused, and of an aggregation only the
    first of its collections.
    """
    try:
        with translated():
            async with renewing(connection.client):
                yield
    except NotAuthorizedError as error:
        raise await _explained(connection, error) from None


async def _explained(
    connection: Connection, error: NotAuthorizedError
) -> NotAuthorizedError:
    if error.refusal is None:
        return error
    try:
        login = await login_of(connection)
    except PyMongoError:
        return error
    missing = missing_privileges(error.refusal, connection.prefix, login.privileges)
    if not missing:
        return error
    users = ", ".join(map(repr, login.users))
    options = f"--database {connection.database.name}"
    if connection.prefix:
        options += f" --prefix {connection.prefix}"
    lacking = [str(each) for each in missing]
    message = (
        f"User {users or '(none)'} lacks the privilege"
        f" {' and '.join(lacking)}. An administrator grants it with the"
        f" role that `mongo-session-service grants {options}` prints."
    )
    return NotAuthorizedError(message, preface=error.preface, lacking=lacking)


def missing_privileges(
    refusal: Refusal, prefix: str, held: Sequence[Document] = ()
) -> list[Privilege]:
    """Which privileges a refused command needs that are not held, as far as known."""
    command, database, collection = refusal
    features = [needs([feature], database, prefix) for feature in FEATURES]
    concerned = [
        each for each in features if collection in {it.collection for it in each}
    ]
    # An aggregation reads other collections of the same feature, too.
    is_wide = command == "aggregate" and collection
    found = dict.fromkeys(each for feature in concerned for each in feature)
    return [
        each
        for each in found
        if each.action in _ACTIONS.get(command, ())
        and each.database == database
        and (each.collection == collection or is_wide)
        and not each.is_among(held)
    ]
