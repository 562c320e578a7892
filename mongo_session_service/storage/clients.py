"""Clients: opened by a URI, and how PyMongo, Motor and mongomock-motor differ.

What the package uses of PyMongo that is not its public interface is here and in
:mod:`~mongo_session_service.storage.failures`; a test compares it with the PyMongo
that is installed.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern, common
from pymongo.driver_info import DriverInfo
from pymongo.errors import InvalidName, PyMongoError

from mongo_session_service._version import __version__
from mongo_session_service.errors import ConfigurationError
from mongo_session_service.model.limits import Limits

if TYPE_CHECKING:
    from mongo_session_service.codec.hooks import Hooks

logger = logging.getLogger(__name__)

_MAJORITY: Final = WriteConcern("majority")
_JOURNALED: Final = WriteConcern("majority", j=True)


def current_cursor(stream: Any) -> object:
    """Return the cursor of a change stream, which changes when it is resumed.

    None before its first use, when Motor has not opened it.
    """
    stream = getattr(stream, "delegate", stream)  # in Motor's is PyMongo's
    return getattr(stream, "_cursor", None)


def is_buffering(cursor: object) -> bool:
    """True if a cursor has documents that were fetched and not yet read."""
    return bool(getattr(cursor, "_data", ()))


class Driver(Enum):
    """Client library of a connection."""

    PYMONGO = "PyMongo"
    MOTOR = "Motor"
    MOCK = "mongomock-motor"

    @classmethod
    def detect(cls, client: object) -> Driver:
        """Return the library that a client belongs to; refuse any other object."""
        # mongomock-motor's client claims to be Motor's; its base classes do not.
        bases = {base.__module__.partition(".")[0] for base in type(client).__mro__}
        if "mongomock_motor" in bases:
            return cls.MOCK
        if isinstance(client, AsyncMongoClient):
            return cls.PYMONGO
        motor = sys.modules.get("motor.motor_asyncio")
        if motor and isinstance(client, motor.AsyncIOMotorClient):
            return cls.MOTOR
        if isinstance(client, MongoClient):
            raise ConfigurationError(
                "client is a synchronous MongoClient, which would block the event"
                " loop. Pass a pymongo.AsyncMongoClient, or a URI instead."
            )
        raise ConfigurationError(
            "client must be a pymongo.AsyncMongoClient, a Motor AsyncIOMotorClient or"
            f" a mongomock-motor AsyncMongoMockClient, not {type(client).__name__}."
        )

    async def open_cursor(self, cursor: Any) -> Any:
        """Open an aggregation or change stream, which only PyMongo has to await."""
        return await cursor if self is Driver.PYMONGO else cursor

    def blocking_database(self, database: Any) -> tuple[Any, Callable[[], None]]:
        """Return a database for a thread without an event loop, and what closes it.

        A client of PyMongo's belongs to its event loop, so it gets a synchronous twin
        with the same settings. Those of Motor and mongomock-motor have one inside.
        """
        if self is not Driver.PYMONGO:
            return database.delegate, lambda: None
        settings = database.client._init_kwargs  # noqa: SLF001  as its own copies do
        client: MongoClient[Any] = MongoClient(**settings)
        return client.get_database(database.name), client.close

    def is_sharded(self, client: Any) -> bool:
        if self is Driver.MOCK:
            return False
        name = topology_of(client).topology_type_name
        return name in {"Sharded", "LoadBalanced"}

    def known_primary(self, client: Any) -> object:
        """Return the primary and its term, as far as the client knows them."""
        if self is Driver.MOCK:
            return None
        for each in topology_of(client).server_descriptions().values():
            if each.is_writable:
                return each.address, each.election_id
        return None


def topology_of(client: Any) -> Any:
    """Return what a client of PyMongo's or Motor's knows of its servers."""
    is_own = isinstance(client, AsyncMongoClient)
    return (client if is_own else client.delegate).topology_description


def warn_of_unused_concerns(client: Any) -> None:
    if client.read_preference != ReadPreference.PRIMARY:
        logger.warning(
            "The client's read preference (%s) is not used: the primary answers, since"
            " another member may not have the latest write yet.",
            client.read_preference.mongos_mode,
        )
    if client.read_concern.level == "linearizable":
        logger.warning(
            "The client's read concern (linearizable) is not used: sessions are read"
            " from several collections, in a majority-committed snapshot."
        )
    asked = client.write_concern.document
    unkept = [
        f"{option}={value}"
        for option, value in asked.items()
        if (option, value) not in {("w", "majority"), ("j", True)}
    ]
    if unkept:
        logger.warning(
            "The client's write concern (%s) is not used: each write waits until a"
            " majority of the members has it, because it could be lost otherwise.",
            ", ".join(unkept),
        )


def write_concern(client: Any) -> WriteConcern:
    return _JOURNALED if client.write_concern.document.get("j") else _MAJORITY


DEFAULT_DATABASE: Final = "adk"

_DRIVER_INFO: Final = DriverInfo("mongo-session-service", __version__)
_SCHEMES: Final = ("mongodb://", "mongodb+srv://")
_REFUSALS: Final = (PyMongoError, OSError, ValueError, KeyError)
"""Errors of the driver for a URI that it rejects."""
_ENCODE: Final = "user or password hold characters that have to be percent-encoded"
_MALFORMED: Final = (
    "it is malformed, or names a file that cannot be read; a host is name or name:port,"
    " an IPv6 address is in brackets, mongodb+srv:// takes one host and no port, and"
    " options are key=value pairs joined by &"
)
_KNOWN_OPTION: Final = re.compile(
    rf"[?&](?:{'|'.join(common.VALIDATORS)})=[^&]*", re.IGNORECASE
)
_NAMES: Final = (
    "a database's name may not hold / \\ . \" $ spaces or NUL, and a collection_prefix"
    " neither begins with a full stop, nor holds two in a row, $ or NUL"
)
_RESERVED: Final = {"admin", "config", "local"}
_MAX_DATABASE_BYTES: Final = 63
_MAX_PREFIX_BYTES: Final = 235
"""Bytes that a database and a prefix may have, of MongoDB's 255 for a whole name."""


def open_client(uri: str) -> AsyncMongoClient[Any]:
    """Make a client for a URI; it is not connected yet.

    An error for a URI that is unusable shows no password.
    """
    if not isinstance(uri, str):
        kind = type(uri).__name__
        message = f"uri must be a string, not {kind}; pass a client as client=."
        raise ConfigurationError(message)
    if not uri.startswith(_SCHEMES):
        reason = "its scheme is neither mongodb:// nor mongodb+srv://"
    elif _has_stray_at(uri):
        reason = _ENCODE
    else:
        try:
            return AsyncMongoClient(uri, driver=_DRIVER_INFO)
        except _REFUSALS:
            reason = _MALFORMED
    raise ConfigurationError(
        f"The MongoDB URI cannot be used: {reason}. Expected"
        " mongodb://[user:password@]host[:port]/[database][?options], with reserved"
        " characters in user and password percent-encoded."
    )


def _has_stray_at(uri: str) -> bool:
    """True if an ``@`` neither ends ``user:password`` nor is an option's value.

    The driver would take part of the password for a host, and try to connect to it.
    """
    rest = _KNOWN_OPTION.sub("", uri.partition("://")[2])
    login_and_hosts, *others = re.split("[/?]", rest, maxsplit=1)
    return login_and_hosts.count("@") > 1 or "@" in "".join(others)


def check_names(client: Any, database: str, prefix: str) -> None:
    """Refuse names that MongoDB would refuse, or that have no transactions."""
    if database in _RESERVED:
        raise ConfigurationError(
            f"The database {database!r} is MongoDB's own, and has no transactions."
            " Name another in the URI, before the ?, or as database=; where the user is"
            f" defined there, add authSource={database} to the URI."
        )
    if problem := _problem_with(client, database, prefix):
        message = f"Unusable database name or collection prefix: {problem}."
        raise ConfigurationError(message)


def _problem_with(client: Any, database: str, prefix: str) -> str | None:
    try:
        length = len(f"{database}.{prefix}".encode())
        client.get_database(database).get_collection(f"{prefix}sessions")
    except UnicodeEncodeError:
        return "it holds a lone surrogate"
    except InvalidName:
        return _NAMES
    if prefix.startswith("system."):
        return "collections named system.* are MongoDB's own"
    if len(database.encode()) > _MAX_DATABASE_BYTES or length > _MAX_PREFIX_BYTES:
        return (
            f"the name may have at most {_MAX_DATABASE_BYTES} bytes, and with the"
            f" prefix {_MAX_PREFIX_BYTES}"
        )
    return None


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Settings of a connection: where sessions are stored, and how."""

    database: str
    prefix: str
    transactions: bool
    hooks: Hooks
    limits: Limits

    @classmethod
    def from_arguments(
        cls,
        uri: str | None,
        client: Any,
        *,
        database: str | None,
        prefix: str,
        transactions: bool,
        hooks: Hooks,
        limits: Limits,
    ) -> ConnectionSettings:
        """Check a service's arguments, and return the settings that they describe."""
        if (uri is None) == (client is None):
            given = "neither" if uri is None else "both"
            message = f"MongoSessionService takes a URI or a client; it got {given}."
            raise ConfigurationError(message)
        if not isinstance(database, str | None) or not isinstance(prefix, str):
            raise ConfigurationError("database and collection_prefix must be strings.")
        if not isinstance(transactions, bool):
            raise ConfigurationError("transactions must be True or False.")
        if uri is not None:
            probe = open_client(uri)
            database = database or probe.get_default_database(DEFAULT_DATABASE).name
        else:
            probe, database = client, database or DEFAULT_DATABASE
        if Driver.detect(probe) is Driver.MOCK and transactions:
            message = "mongomock has no transactions: pass transactions=False with it."
            raise ConfigurationError(message)
        if Driver.detect(probe) is not Driver.MOCK:
            warn_of_unused_concerns(probe)
        check_names(probe, database, prefix)
        hooks.check_hooks()
        return cls(database, prefix, transactions, hooks, limits)
