"""Translation: an error of PyMongo becomes one of this package's.

A server's error text may quote the documents it refused, and so is never passed on:
its name and code are. What the driver says of connections names no more than hosts.
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

_HINTS: Final = {
    "No replica set members available": "The servers answer, but none is a member of"
    " the replica set that replicaSet= names. A standalone server is never one.",
    'match selector "Primary': "The servers answer, but none is primary. During an"
    " election, try again soon; a new replica set needs rs.initiate() once.",
    "name or service not known|name resolution|nodename nor servname|getaddrinfo"
    "|no address associated": "DNS does not know the host: check its name in the URI.",
    "SSL handshake failed": "Check whether the server offers TLS, as the URI asks.",
    "": "Check that mongod is running there, and can be reached from this machine.",
}
"""Advice, by a pattern in the text with which the driver reports that it found no
server. The first that matches counts."""
_NOISE: Final = re.compile(
    r" \(configured timeouts: [^)]*\)|, (?:Topology Description|full error):.*",
    re.DOTALL,
)
"""The driver's settings, and at the end the topology or a server's whole reply."""
_NO_SRV: Final = (
    " A mongodb+srv:// URI needs DNS records for its host: check the host's name, or"
    " write the servers themselves into a mongodb:// URI."
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

_CERTIFICATE_REFUSED: Final = re.compile(
    r"(?P<host>[^\s,]+): \[SSL: CERTIFICATE_VERIFY_FAILED\] certificate verify failed:"
    r" (?P<reason>.*?) \(_ssl"
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


def translate_error(error: PyMongoError | BSONError) -> errors.MongoSessionServiceError:
    """Return this package's error for a driver's error."""
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
        return _unavailable(error)
    if isinstance(error, OperationFailure):
        return _refused(error)
    if isinstance(error, LoginLostError):
        return errors.StorageUnavailableError(_LOGIN_LOST)
    if is_starting(error):
        return errors.StorageUnavailableError(
            "MongoDB is unavailable: a member is starting."
        )
    if isinstance(error, driver_errors.ConfigurationError):
        hint = _NO_SRV if "DNS query name" in str(error) else ""
        message = f"MongoDB cannot be reached with these settings: {error}{hint}"
        return errors.ConfigurationError(message)
    if isinstance(error, driver_errors.InvalidOperation) and "after close" in str(
        error
    ):
        return errors.ConfigurationError(_CLOSED)
    return StorageError(f"The MongoDB driver failed with {type(error).__name__}.")


def certificate_refusal(text: str) -> str | None:
    """Return the message for a refused certificate; None if a text reports none."""
    refused = _CERTIFICATE_REFUSED.search(text)
    if refused is None:
        return None
    return (
        f"The certificate of MongoDB at {refused['host']} is not accepted:"
        f" {refused['reason']}. It must be valid now, issued for that name, and"
        " signed by an authority that the system or tlsCAFile= in the URI trusts."
    )


def _unavailable(error: PyMongoError) -> errors.MongoSessionServiceError:
    reason = _NOISE.sub("", str(error))
    if refusal := certificate_refusal(reason):
        return errors.ConfigurationError(refusal)
    if "Authentication failed" in reason:
        # Once the pool has met it, the driver reports this as a timeout.
        return StorageError(_BAD_CREDENTIALS)
    hint = ""
    if isinstance(error, driver_errors.ServerSelectionTimeoutError):
        signs = (sign for sign in _HINTS if re.search(sign, reason, re.IGNORECASE))
        hint = f" {_HINTS[next(signs)]}"
    return errors.StorageUnavailableError(f"MongoDB is unavailable: {reason}.{hint}")


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
