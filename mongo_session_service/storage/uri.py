"""MongoDB URIs, names, and the connection settings that a service is built with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pymongo import AsyncMongoClient, common
from pymongo.driver_info import DriverInfo
from pymongo.errors import InvalidName, PyMongoError

from mongo_session_service._version import __version__
from mongo_session_service.errors import ConfigurationError
from mongo_session_service.model.limits import Limits
from mongo_session_service.storage import compat
from mongo_session_service.storage.compat import Driver

if TYPE_CHECKING:
    from mongo_session_service.codec.hooks import Hooks

DEFAULT_DATABASE: Final = "adk"

_DRIVER_INFO: Final = DriverInfo("mongo-session-service", __version__)
_SCHEMES: Final = ("mongodb://", "mongodb+srv://")
_REFUSALS: Final = (PyMongoError, OSError, ValueError, KeyError)
"""Errors of the driver for a URI that it rejects."""
_UNENCODED: Final = re.compile(
    r"[/?@]|:.*:|%(?![0-9a-f]{2})", re.DOTALL | re.IGNORECASE
)
"""Characters that must be percent-encoded in ``user:password``."""
_ENCODE: Final = "user or password hold characters that have to be percent-encoded"
_KNOWN_OPTION: Final = re.compile(
    rf"[?&](?:{'|'.join(common.VALIDATORS)})=[^&]*", re.IGNORECASE
)
_SECRET: Final = re.compile("@|password|authmechanismproperties", re.IGNORECASE)
"""Found in every URI that holds a secret."""
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
    if "://" not in uri:
        reason = "it has no scheme"
    elif not uri.startswith(_SCHEMES):
        reason = "its scheme is neither mongodb:// nor mongodb+srv://"
    elif _has_stray_at(uri):
        reason = _ENCODE
    else:
        try:
            return AsyncMongoClient(uri, driver=_DRIVER_INFO)
        except _REFUSALS as error:
            reason = _rejection(uri, error)
    raise ConfigurationError(
        f"The MongoDB URI cannot be used: {reason}. Expected"
        " mongodb://[user:password@]host[:port]/[database][?options], with reserved"
        " characters in user and password percent-encoded."
    )


def _has_stray_at(uri: str) -> bool:
    """Tell whether an ``@`` neither ends ``user:password`` nor is an option's value.

    The driver would take part of the password for a host, and try to connect to it.
    """
    rest = _KNOWN_OPTION.sub("", uri.partition("://")[2])
    login_and_hosts, *others = re.split("[/?]", rest, maxsplit=1)
    return login_and_hosts.count("@") > 1 or "@" in "".join(others)


def _rejection(uri: str, refusal: Exception) -> str:
    """Say why the driver rejects a URI, without anything that may be secret."""
    login, bare = _split_credentials(uri)
    if login is None:
        return _describe_problem(bare, refusal)
    if _UNENCODED.search(login):
        return _ENCODE
    try:
        AsyncMongoClient(bare)
    except _REFUSALS as error:
        return _describe_problem(bare, error)
    if not all(login.partition(":")):
        return "it has a user without a password, or a password without a user"
    return "its options do not fit its user and password"


def _split_credentials(uri: str) -> tuple[str | None, str]:
    """Split a URI into user and password, as far as found, and the rest."""
    scheme, _, rest = uri.partition("://")
    end = rest.find("?")
    # A question mark begins the options, unless it is part of a password.
    if end < 0 or not {"/", "@"} & set(rest[:end]):
        end = len(rest)
    login, at, hosts = rest[:end].rpartition("@")
    return (login, f"{scheme}://{hosts}{rest[end:]}") if at else (None, uri)


def _describe_problem(uri: str, refusal: Exception) -> str:
    """Describe a problem as the driver does, or by its name if that may be secret."""
    is_secret = _SECRET.search(unquote(uri))
    match refusal:
        case OSError():
            return f"{refusal.filename}: {refusal.strerror}"
        case KeyError():
            return f"an option has an unknown value{'' if is_secret else f' {refusal}'}"
        case _ if is_secret:
            return f"something in it is malformed ({type(refusal).__name__})"
    return str(refusal).rstrip(".")


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
    except InvalidName as error:
        return str(error)
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
            compat.warn_of_unused_concerns(probe)
        check_names(probe, database, prefix)
        hooks.check_hooks()
        return cls(database, prefix, transactions, hooks, limits)
