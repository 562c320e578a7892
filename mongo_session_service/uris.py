"""What a URI of MongoDB stands for, and which names can be used there."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import unquote

from pymongo import AsyncMongoClient
from pymongo.driver_info import DriverInfo
from pymongo.errors import InvalidName, PyMongoError

from .errors import ConfigurationError
from .version import __version__

DEFAULT_DATABASE: Final = "adk"

_DRIVER_INFO: Final = DriverInfo("mongo-session-service", __version__)
_SECRET: Final = re.compile("@|password|authmechanismproperties", re.IGNORECASE)
"""What a URI that holds a secret has in it."""
_RESERVED: Final = {"admin", "config", "local"}
_MAX_DATABASE_BYTES: Final = 63
_MAX_PREFIX_BYTES: Final = 235
"""Of MongoDB's 255 for database, prefix and the longest name behind it."""


def open_client(uri: str) -> AsyncMongoClient[Any]:
    """A client for a URI; nothing is connected yet.

    Raises:
        ConfigurationError: it is not one. What is in it is not quoted if it may hold a
            password.
    """
    if not isinstance(uri, str):
        kind = type(uri).__name__
        message = f"uri must be a string, not {kind}; pass a client as client=."
        raise ConfigurationError(message)
    reason: object = "it has no scheme"
    if "://" in uri:
        is_secret = _SECRET.search(unquote(uri))
        try:
            return AsyncMongoClient(uri, driver=_DRIVER_INFO)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
        except (PyMongoError, ValueError) as error:
            reason = type(error).__name__ if is_secret else error
        except KeyError as error:
            reason = "an option has an unknown value"
            reason = reason if is_secret else f"{reason} {error}"
    message = (
        f"The MongoDB URI cannot be used: {reason}. Expected"
        " mongodb://[user:password@]host[:port]/[database][?options], with reserved"
        " characters in user and password percent-encoded."
    )
    raise ConfigurationError(message)


def check_names(client: Any, database: str, prefix: str) -> None:
    """Refuse names that MongoDB would refuse, or that have no transactions.

    Raises:
        ConfigurationError: they would not do.
    """
    if database in _RESERVED:
        message = (
            f"The database {database!r} is MongoDB's own, and has no transactions."
            " Name another in the URI, before the ?, or as database=; where the user is"
            f" defined there, add authSource={database} to the URI."
        )
        raise ConfigurationError(message)
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
            f"the name may have {_MAX_DATABASE_BYTES} bytes, and together with the"
            f" prefix {_MAX_PREFIX_BYTES}"
        )
    return None
