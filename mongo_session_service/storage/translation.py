"""Translation: an error of PyMongo becomes one of this package's.

A server's error text may quote the documents it refused, and the driver words its own
anew with each release: neither is passed on. A server's name and code of an error are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from bson.errors import BSONError
from pymongo import errors as driver_errors
from pymongo.errors import OperationFailure, PyMongoError

from mongo_session_service import errors
from mongo_session_service.errors import NotAuthorizedError, StorageError
from mongo_session_service.storage.outages import (
    certificate_refusal,
    describe_outage,
    topology_of,
)

FOREIGN_LOOP: Final = (
    "The client belongs to another event loop. Create client and service in the loop"
    " that uses them, or give the service a URI: it then opens a client per loop."
)

_CLOSED: Final = "The client was closed. Give the service an open one, or a URI."

_UNKNOWN_OUTCOME: Final = (
    "MongoDB stopped answering during a write, so its outcome is unknown: it may have"
    " been done or not. Repeat the call: the same event is not stored twice."
)

_IN_PARTS: Final = (
    "MongoDB stopped answering during a removal, which may be done in part or in full."
    " Repeat the call: it removes the rest."
)

_STORED: Final = "It is stored, but could not be read back. "

_NO_SRV: Final = (
    "DNS has no records for the host of the mongodb+srv:// URI: check the host's name,"
    " or write the servers themselves into a mongodb:// URI."
)

_REFUSED_SETTINGS: Final = (
    "MongoDB cannot be reached with these settings. Check whether the server is"
    " MongoDB 5.0 or newer, and the options of the URI."
)

_BAD_CREDENTIALS: Final = (
    "MongoDB refused the user name or password. The user must be defined in the URI's"
    " database, or in the one that authSource= names, for example authSource=admin."
)

_NO_LOGIN: Final = (
    "MongoDB requires a user and password, but got none. Put them into the URI, as in"
    " mongodb://user:password@host/?authSource=admin."
)

_LOGIN_LOST: Final = (
    "The MongoDB user was dropped while connected. If it was created again, repeat the"
    " call: new connections log in again."
)

_REFUSED_COMMAND: Final = re.compile(
    r'not authorized on (\S+) to execute command \{ (\w+): (?:"([^"]*)")?'
)
"""Database, command and collection, of all that a server says of a refusal."""

DUPLICATE_KEY: Final = 11000
_DOCUMENT_TOO_LARGE: Final = {10334, 17280, 17419, 17420}
UNAUTHORIZED: Final = 13
_LOGIN_REFUSED: Final = {
    11,  # UserNotFound
    17,  # ProtocolError, if the user was dropped amid its login
    18,  # AuthenticationFailed
}
TRANSIENT_CODES: Final = frozenset(
    {
        # The server's category RetriableError, in its error_codes.yml, which holds all
        # that PyMongo retries; without the codes that never leave a server.
        6,  # HostUnreachable
        7,  # HostNotFound
        89,  # NetworkTimeout
        91,  # ShutdownInProgress
        134,  # ReadConcernMajorityNotAvailableYet
        189,  # PrimarySteppedDown
        262,  # ExceededTimeLimit
        358,  # InternalTransactionNotSupported
        402,  # ResourceExhausted
        406,  # MigrationBlockingOperationCoordinatorCleaningUp
        407,  # PooledConnectionAcquisitionExceededTimeLimit
        412,  # UpdatesStillPending
        9001,  # SocketException
        10107,  # NotWritablePrimary
        11600,  # InterruptedAtShutdown
        11602,  # InterruptedDueToReplStateChange
        13435,  # NotPrimaryNoSecondaryOk
        13436,  # NotPrimaryOrSecondary
        # Its category SystemOverloadedError.
        433,  # AdmissionQueueOverflow
        449,  # RateLimitExceeded
        462,  # IngressRequestRateLimitExceeded
        # Its category SnapshotError: another snapshot may be read.
        239,  # SnapshotTooOld
        246,  # SnapshotUnavailable
        250,  # StaleChunkHistory
        272,  # MigrationConflict
        # A cursor or an operation that was ended, as by a rollback after a failover.
        43,  # CursorNotFound
        175,  # QueryPlanKilled
        237,  # CursorKilled
        11601,  # Interrupted
        # The storage engine's cache is full; in no category, though it passes.
        365,  # TemporarilyUnavailable
    }
)
"""Codes of failures that pass: what may be repeated is, and a caller may try again."""
WRITE_CONFLICT: Final = 112
_LIMIT_CODES: Final = {
    24,  # LockTimeout
    50,  # MaxTimeMSExpired
    WRITE_CONFLICT,
    251,  # NoSuchTransaction
}
"""Codes that arrive when a time limit has run out: the caller's, or that of the
driver's retries of a transaction. A caller may try again; a retry here would exceed
that limit."""
_REPEATED: Final = ("RetryableWriteError", "UnknownTransactionCommitResult")
"""Labels of what the driver repeats by itself."""
_TRANSIENT_LABELS: Final = ("TransientTransactionError", "RetryableWriteError")


def is_starting(error: PyMongoError) -> bool:
    """Tell whether an error came from a connection to a member that was not ready.

    Such a member does not support sessions yet. The driver remembers that for as long
    as the connection is open, and concludes that the whole deployment does not.
    """
    is_config = isinstance(error, driver_errors.ConfigurationError)
    return is_config and str(error).startswith("Sessions are not supported")


def is_logged_out(error: PyMongoError) -> bool:
    """Tell whether an error came from a connection that no user is logged in on.

    MongoDB logs out every connection of a user who is dropped, for good, even if the
    user is created again.
    """
    is_refused = isinstance(error, OperationFailure)
    return is_refused and "requires authentication" in str(error)


def is_turned_away(error: PyMongoError) -> bool:
    """Tell whether a server answered that it cannot do a command now, but will soon.

    The driver has repeated what has one of the labels, and it may have been done.
    """
    is_refused = isinstance(error, OperationFailure) and error.code in TRANSIENT_CODES
    is_labelled = any(error.has_error_label(label) for label in _REPEATED)
    is_not_primary = isinstance(error, driver_errors.NotPrimaryError)
    return (is_refused or is_not_primary) and not is_labelled


class TimeLimitError(driver_errors.NetworkTimeout):
    """A time limit of this package has run out; the text is this package's, too."""


class LoginLostError(PyMongoError):
    """The user was dropped: nothing was done, and new connections log in again."""


@contextmanager
def reporting_unknown_outcome() -> Iterator[None]:
    """Report a write that got no answer, outside a transaction, as perhaps done."""
    try:
        yield
    except driver_errors.ServerSelectionTimeoutError:
        raise
    except PyMongoError as error:
        is_lost = isinstance(
            error, driver_errors.ConnectionFailure | driver_errors.ExecutionTimeout
        )
        # The driver's retry may have met that, after a first attempt that was done.
        is_lost = is_lost or is_starting(error)
        if is_lost or error.has_error_label("RetryableWriteError"):
            raise errors.UnknownOutcomeError(_UNKNOWN_OUTCOME) from None
        raise


@contextmanager
def reporting_stored_unread() -> Iterator[None]:
    """Report a write as done if the read after it fails or is refused."""
    try:
        yield
    except (PyMongoError, StorageError) as error:
        failure = translate_error(error) if isinstance(error, PyMongoError) else error
        if isinstance(failure, NotAuthorizedError):
            raise NotAuthorizedError(f"{_STORED}{failure}") from None
        raise errors.UnknownOutcomeError(f"{_STORED}{failure}") from None


@contextmanager
def reporting_partial_removal() -> Iterator[None]:
    """Report a removal that fails after its first step as partly done."""
    try:
        yield
    except (PyMongoError, errors.StorageUnavailableError) as error:
        failure = translate_error(error) if isinstance(error, PyMongoError) else error
        if isinstance(failure, errors.StorageUnavailableError):
            raise errors.UnknownOutcomeError(_IN_PARTS) from None
        raise


def is_duplicate_key(error: PyMongoError) -> bool:
    """Tell whether a write failed because something with its key is stored already."""
    if isinstance(error, driver_errors.BulkWriteError):
        codes = {each["code"] for each in error.details["writeErrors"]}
        return DUPLICATE_KEY in codes
    return isinstance(error, driver_errors.DuplicateKeyError)


def is_bad_login(error: Exception) -> bool:
    """Tell whether MongoDB has refused the user name or password."""
    return getattr(error, "code", None) in _LOGIN_REFUSED


def translate_error(
    error: PyMongoError | BSONError, client: Any = None
) -> errors.MongoSessionServiceError:
    """Return this package's error for a driver's error, met by a client."""
    if isinstance(error, driver_errors.DocumentTooLarge):
        return errors.DocumentTooLargeError()
    if isinstance(error, BSONError):
        return errors.InvalidInputError()
    if error.has_error_label("UnknownTransactionCommitResult") or isinstance(
        error, driver_errors.WriteConcernError
    ):
        return errors.UnknownOutcomeError(_UNKNOWN_OUTCOME)
    if isinstance(
        error, driver_errors.ConnectionFailure | driver_errors.ExecutionTimeout
    ):
        return _unavailable(error, client)
    if isinstance(error, OperationFailure):
        return _refused(error)
    if isinstance(error, LoginLostError):
        return errors.StorageUnavailableError(_LOGIN_LOST)
    if is_starting(error):
        return errors.StorageUnavailableError(
            "MongoDB is unavailable: a member is starting."
        )
    if isinstance(error, driver_errors.ConfigurationError):
        is_dns = type(error.__cause__).__module__.startswith("dns.")
        return errors.ConfigurationError(_NO_SRV if is_dns else _REFUSED_SETTINGS)
    if isinstance(error, driver_errors.InvalidOperation) and "after close" in str(
        error
    ):
        return errors.ConfigurationError(_CLOSED)
    return StorageError(f"The MongoDB driver failed with {type(error).__name__}.")


def _unavailable(error: PyMongoError, client: Any) -> errors.MongoSessionServiceError:
    if isinstance(error, TimeLimitError):
        reason = f"{error}."
    elif not isinstance(error, driver_errors.ServerSelectionTimeoutError):
        reason = "the connection was lost, or there was no answer in time."
    elif client is None:
        reason = "no server can be used."
    elif refusal := certificate_refusal(client):
        return errors.ConfigurationError(refusal)
    elif _has_refused_login(client):
        # Once the pool has met it, the driver reports this as a timeout.
        return StorageError(_BAD_CREDENTIALS)
    else:
        # Who gives up earlier raises the error without a text.
        seconds = client.options.server_selection_timeout
        waited = f" It was tried for {seconds:g}s." if str(error) else ""
        reason = describe_outage(client) + waited
    return errors.StorageUnavailableError(f"MongoDB is unavailable: {reason}")


def _has_refused_login(client: Any) -> bool:
    servers = topology_of(client).server_descriptions().values()
    return any("Authentication failed" in str(each.error) for each in servers)


def _refused(error: OperationFailure) -> StorageError:
    details = error.details or {}
    name = f"{details.get('codeName', 'error')} (code {error.code})"
    if error.code in _DOCUMENT_TOO_LARGE:
        return errors.DocumentTooLargeError()
    if is_bad_login(error):
        return StorageError(_BAD_CREDENTIALS)
    if is_logged_out(error):
        return StorageError(_NO_LOGIN)
    if error.code == UNAUTHORIZED:
        return NotAuthorizedError(
            f"MongoDB refused {_refused_command(details)}: the user lacks a privilege."
            " `mongo-session-service grants` prints a role with all that are needed."
            " See docs/operations/mongodb.md#users-and-privileges."
        )
    is_labelled = any(error.has_error_label(label) for label in _TRANSIENT_LABELS)
    if is_labelled or error.code in TRANSIENT_CODES | _LIMIT_CODES:
        return errors.StorageUnavailableError(
            f"MongoDB could not finish in time: {name}."
        )
    return StorageError(f"MongoDB refused the operation: {name}.")


def _refused_command(details: Mapping[str, Any]) -> str:
    found = _REFUSED_COMMAND.match(str(details.get("errmsg", "")))
    if found is None:
        return "a command"
    database, command, collection = found.groups()
    return f"{command!r} on {'.'.join(filter(None, (database, collection)))!r}"
