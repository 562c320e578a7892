"""Failures of MongoDB: which pass, which are repeated, and which error each becomes.

:func:`repeat` is the one rule of retries, by which each verb of the kernel runs. The
driver itself repeats every command once, on another connection, and a transaction that
was turned away until its time limit. What no longer may be repeated fails; its outcome
may be unknown, and the caller decides.

A server's error text may quote the documents it refused, and the driver words its own
anew with each release: neither is passed on. A server's name and code of an error are.
Why no server can be used is found in what the driver's topology holds, and in the
numbers and names that the operating system and OpenSSL give to their errors.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from itertools import count
from typing import Any, Final, TypeVar

from bson.errors import BSONError
from pymongo import AsyncMongoClient
from pymongo import errors as driver
from pymongo.errors import OperationFailure, PyMongoError

from mongo_session_service import errors
from mongo_session_service.errors import NotAuthorizedError, StorageError
from mongo_session_service.storage.clients import topology_of
from mongo_session_service.storage.statements import DuplicateError
from mongo_session_service.storage.tasks import ReraisedCancellation, backoff

Result = TypeVar("Result")

RETRY_LIMIT: Final = 60.0
"""Seconds until a failing operation is given up; an election takes up to 12."""

PAUSE_AFTER_LOSS: Final = 0.5
"""Seconds before a stream that lost its history is reopened, to avoid a busy loop."""

_REPEAT_PAUSES: Final = (0.01, 0.05, 0.2)
"""Seconds between the attempts of what is repeated soon."""

_FIRST_RETRY_PAUSE: Final = 0.02  # seconds
_LONGEST_RETRY_PAUSE: Final = 2.0  # seconds
_IS_CLOSED: Final = re.compile("after close|ended session")
_FOREIGN: Final = re.compile("different (?:event )?loop|loop is closed")

FOREIGN_LOOP: Final = (
    "The client belongs to another event loop. Create client and service in the loop"
    " that uses them, or give the service a URI: it then works in any loop."
)

CLOSED: Final = "The client was closed. Give the service an open one, or a URI."

_UNKNOWN_OUTCOME: Final = (
    "MongoDB stopped answering during a write, so its outcome is unknown: it may have"
    " been done or not. Repeat the call: the same event is not stored twice."
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

_REFUSED_COMMAND: Final = re.compile(
    r'not authorized on (\S+) to execute command \{ (\w+): (?:"([^"]*)")?'
)
"""Of a refusal's text, the database, the command and the collection."""

DUPLICATE_KEY: Final = 11000
_DOCUMENT_TOO_LARGE: Final = {10334, 17280, 17419, 17420}
_INSERT_TOO_LARGE: Final = "object to insert too large"
"""How the text of an insert's refusal begins, which has no code of its own."""
_UNAUTHORIZED: Final = 13
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
        453,  # InterruptedDueToReshardingCriticalSection
        9001,  # SocketException
        10107,  # NotWritablePrimary
        11600,  # InterruptedAtShutdown
        11602,  # InterruptedDueToReplStateChange
        13435,  # NotPrimaryNoSecondaryOk
        13436,  # NotPrimaryOrSecondary
        91331,  # RetriableRemoteCommandFailure
        10045600,  # InterruptedDueToFCVChange
        # Its category SystemOverloadedError.
        433,  # AdmissionQueueOverflow
        449,  # RateLimitExceeded
        450,  # PooledConnectionAcquisitionRejected
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
_TRANSIENT_NAME: Final = "TooManyOpenTransactions"
"""One of MongoDB 9 whose code is not published."""
_OVERLOADED: Final = "SystemOverloadedError"
"""The label of a server of MongoDB 9 that has turned a command away."""
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
_SYSTEM_ERROR: Final = re.compile(r"\[Errno (-?\d+)\]")
_UNRESOLVED: Final = {8, 11001}
"""What macOS and Windows call a name that DNS does not know; Linux, below zero."""
_CERTIFICATE: Final = re.compile(r"CERTIFICATE_VERIFY_FAILED\](?:[^:]*: (.*?) \(_ssl)?")

_NO_MEMBER: Final = (
    "no member of a replica set named {!r} was found. The servers may answer, but"
    " belong to no replica set, as a standalone, or to one of another name: check"
    " replicaSet= in the URI."
)
_NO_PRIMARY: Final = (
    "Check that mongod is running there, and can be reached from this machine. During"
    " an election, try again soon; a new replica set needs rs.initiate() once."
)


class TimeLimitError(driver.NetworkTimeout):
    """A time limit of this package has run out; the text is this package's, too."""


class LoginLostError(PyMongoError):
    """The user was dropped: nothing was done, and new connections log in again."""


class Effect(Enum):
    """What work may have done when it has failed without a reply."""

    HARMLESS = auto()
    """Nothing, or what has the same result when it is done twice."""
    UNKNOWN = auto()
    """It may have written, and nothing shows whether it has."""
    RECOGNISED = auto()
    """It may have written, but its caller or a commit's retry finds out."""


async def repeat(
    client: Any, work: Callable[[], Awaitable[Result]], effect: Effect, *, patient: bool
) -> Result:
    """Do something, again after a failure that passes; raise this package's errors.

    Impatient work, for which a caller waits, is repeated three times, soon: harmless
    work after any transient failure, other work only if a server has turned it away, so
    that nothing was done. Patient work is repeated for ``RETRY_LIMIT`` seconds, after
    any transient failure, and so has to have the same result when it is done twice.
    """
    waiting = pauses() if patient else iter(_REPEAT_PAUSES)
    while True:
        try:
            with ReraisedCancellation():
                return await work()
        except PyMongoError as error:
            failure = error
            if await renew_connections(client, error) and is_logged_out(error):
                failure = LoginLostError(str(error))
            pause = None
            if _may_repeat(failure, effect, patient=patient):
                pause = next(waiting, None)
                if pause is None and patient and effect is not Effect.UNKNOWN:
                    raise gave_up_error(failure, client) from None
            if pause is None:
                raise _final_error(failure, effect, client) from None
        except BSONError as error:
            raise translate_error(error) from None
        except RuntimeError as error:
            if not _FOREIGN.search(str(error)):
                raise
            raise errors.ConfigurationError(FOREIGN_LOOP) from None
        await asyncio.sleep(pause)


def _may_repeat(error: PyMongoError, effect: Effect, *, patient: bool) -> bool:
    if patient:
        return error.timeout or is_transient(error)
    if effect is Effect.HARMLESS:
        # Where a time limit has run out, the driver has waited already; after a refused
        # login it would do so.
        return is_transient(error) and not (error.timeout or _is_bad_login(error))
    return is_turned_away(error) or isinstance(error, LoginLostError)


def _final_error(
    error: PyMongoError, effect: Effect, client: Any
) -> errors.MongoSessionServiceError:
    if _is_duplicate_key(error):
        return DuplicateError()
    if effect is Effect.UNKNOWN and _may_be_done(error):
        return errors.UnknownOutcomeError(_UNKNOWN_OUTCOME)
    return translate_error(error, client)


def _may_be_done(error: PyMongoError) -> bool:
    """True if a write outside a transaction has failed without an answer."""
    if isinstance(error, driver.ServerSelectionTimeoutError):
        return False
    lost = driver.ConnectionFailure | driver.ExecutionTimeout
    # The driver's retry may have met a member that starts, after an attempt was done.
    is_lost = isinstance(error, lost) or is_starting(error)
    return is_lost or error.has_error_label("RetryableWriteError")


def pauses() -> Iterator[float]:
    """Yield the seconds between retries, until ``RETRY_LIMIT`` has run out."""
    end = time.monotonic() + RETRY_LIMIT
    for attempt in count():
        if time.monotonic() >= end:
            return
        yield backoff(attempt, first=_FIRST_RETRY_PAUSE, longest=_LONGEST_RETRY_PAUSE)


def gave_up_error(error: Exception, client: Any) -> errors.MongoSessionServiceError:
    """Return the error to raise when ``RETRY_LIMIT`` has run out."""
    reason = "MongoDB does not answer."
    if isinstance(error, PyMongoError):
        reason = str(translate_error(error, client))
    return errors.StorageUnavailableError(
        f"Gave up after {RETRY_LIMIT:.0f} seconds. {reason}"
    )


def is_transient(error: PyMongoError) -> bool:
    """True if a failure of MongoDB is transient: a retry may succeed."""
    if isinstance(error, OperationFailure):
        is_resumable = error.has_error_label("ResumableChangeStreamError")
        # Who was dropped may be created again. Whose login was never accepted does not
        # come here: setting up has failed.
        is_login = is_logged_out(error) or _is_bad_login(error)
        return is_resumable or is_login or _passes(error)
    is_connection = isinstance(error, driver.ConnectionFailure | LoginLostError)
    return is_connection or is_starting(error)


def _passes(error: OperationFailure) -> bool:
    """True if a server has refused a command for a while."""
    name = (error.details or {}).get("codeName")
    is_overload = name == _TRANSIENT_NAME or error.has_error_label(_OVERLOADED)
    return is_overload or error.code in TRANSIENT_CODES


def is_starting(error: PyMongoError) -> bool:
    """True if an error came from a connection to a member that was not ready.

    Such a member does not support sessions yet. The driver remembers that for as long
    as the connection is open, and concludes that the whole deployment does not.
    """
    is_config = isinstance(error, driver.ConfigurationError)
    return is_config and str(error).startswith("Sessions are not supported")


def is_write_conflict(error: Exception) -> bool:
    """True if another transaction holds a document that a write needs."""
    return isinstance(error, OperationFailure) and error.code == WRITE_CONFLICT


def is_logged_out(error: PyMongoError) -> bool:
    """True if an error came from a connection that no user is logged in on.

    MongoDB logs out every connection of a user who is dropped, for good, even if the
    user is created again.
    """
    is_refused = isinstance(error, OperationFailure)
    return is_refused and "requires authentication" in str(error)


def is_turned_away(error: PyMongoError) -> bool:
    """True if a server answered that it cannot do a command now, but will soon.

    The driver has repeated what has one of the labels, and it may have been done.
    """
    is_refused = isinstance(error, OperationFailure) and _passes(error)
    is_labelled = any(error.has_error_label(label) for label in _REPEATED)
    is_not_primary = isinstance(error, driver.NotPrimaryError)
    return (is_refused or is_not_primary) and not is_labelled


def _is_duplicate_key(error: PyMongoError) -> bool:
    if isinstance(error, driver.BulkWriteError):
        codes = {each["code"] for each in error.details["writeErrors"]}
        return DUPLICATE_KEY in codes
    return isinstance(error, driver.DuplicateKeyError)


def _is_bad_login(error: Exception) -> bool:
    return getattr(error, "code", None) in _LOGIN_REFUSED


async def renew_connections(client: Any, error: PyMongoError) -> bool:
    """Replace a client's idle connections if an error came from an outdated one.

    False if it did not.
    """
    if not is_starting(error) and not is_logged_out(error):
        return False
    asynchronous = isinstance(client, AsyncMongoClient)
    client = client if asynchronous else client.delegate
    has_login = client.options.pool_options._credentials is not None  # noqa: SLF001
    if is_logged_out(error) and not has_login:
        return False
    for server in list(client._topology._servers.values()):  # noqa: SLF001
        resetting = server.pool.reset_without_pause()
        if asynchronous:
            await resetting
    return True


@contextmanager
def reporting_stored_unread() -> Iterator[None]:
    """Report a write as done if the read after it fails or is refused."""
    try:
        yield
    except NotAuthorizedError as error:
        raise NotAuthorizedError(f"{_STORED}{error}") from None
    except StorageError as error:
        raise errors.UnknownOutcomeError(f"{_STORED}{error}") from None


@contextmanager
def reporting_partial_removal() -> Iterator[None]:
    """Report a removal that fails after its first step as partly done."""
    try:
        yield
    except errors.StorageUnavailableError:
        raise errors.UnknownOutcomeError(
            "MongoDB stopped answering during a removal, which may be done in part or"
            " in full. Repeat the call: it removes the rest."
        ) from None


def translate_error(
    error: PyMongoError | BSONError, client: Any = None
) -> errors.MongoSessionServiceError:
    """Return this package's error for a driver's error, met by a client."""
    if isinstance(error, driver.DocumentTooLarge):
        return errors.DocumentTooLargeError()
    if isinstance(error, BSONError):
        return errors.InvalidInputError()
    if error.has_error_label("UnknownTransactionCommitResult") or isinstance(
        error, driver.WriteConcernError
    ):
        return errors.UnknownOutcomeError(_UNKNOWN_OUTCOME)
    if isinstance(error, driver.ConnectionFailure | driver.ExecutionTimeout):
        return _unavailable_error(error, client)
    if isinstance(error, OperationFailure):
        return _refusal_error(error)
    if isinstance(error, LoginLostError):
        return errors.StorageUnavailableError(
            "The MongoDB user was dropped while connected. If it was created again,"
            " repeat the call: new connections log in again."
        )
    if is_starting(error):
        return errors.StorageUnavailableError(
            "MongoDB is unavailable: a member is starting."
        )
    if isinstance(error, driver.ConfigurationError):
        is_dns = type(error.__cause__).__module__.startswith("dns.")
        return errors.ConfigurationError(_NO_SRV if is_dns else _REFUSED_SETTINGS)
    if isinstance(error, driver.InvalidOperation) and _IS_CLOSED.search(str(error)):
        return errors.ConfigurationError(CLOSED)
    return StorageError(f"The MongoDB driver failed with {type(error).__name__}.")


def _unavailable_error(
    error: PyMongoError, client: Any
) -> errors.MongoSessionServiceError:
    can_write = client is None or topology_of(client).has_writable_server()
    # If none can be written to, that says more than who noticed it.
    if can_write and isinstance(error, TimeLimitError):
        reason = f"{error}."
    elif can_write and not isinstance(error, driver.ServerSelectionTimeoutError):
        reason = "the connection was lost, or there was no answer in time."
    elif client is None:
        reason = "no server can be used."
    elif refusal := certificate_refusal(client):
        return errors.ConfigurationError(refusal)
    elif any(
        "Authentication failed" in str(each.error)
        for each in topology_of(client).server_descriptions().values()
    ):
        # Once the pool has met it, the driver reports this as a timeout.
        return StorageError(_BAD_CREDENTIALS)
    else:
        reason = _describe_outage(client)
    return errors.StorageUnavailableError(f"MongoDB is unavailable: {reason}")


def _refusal_error(error: OperationFailure) -> StorageError:
    details = error.details or {}
    name = f"{details.get('codeName', 'error')} (code {error.code})"
    is_large = str(details.get("errmsg")).startswith(_INSERT_TOO_LARGE)
    if is_large or error.code in _DOCUMENT_TOO_LARGE:
        return errors.DocumentTooLargeError()
    if _is_bad_login(error):
        return StorageError(_BAD_CREDENTIALS)
    if is_logged_out(error):
        return StorageError(
            "MongoDB requires a user and password, but got none. Put them into the URI,"
            " as in mongodb://user:password@host/?authSource=admin."
        )
    if error.code == _UNAUTHORIZED:
        return NotAuthorizedError(
            f"MongoDB refused {_refused_command(details)}: the user lacks a privilege."
            " `mongo-session-service grants` prints a role with all that are needed."
            " See docs/operations/mongodb.md#users-and-privileges."
        )
    is_labelled = any(error.has_error_label(label) for label in _TRANSIENT_LABELS)
    if is_labelled or _passes(error) or error.code in _LIMIT_CODES:
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


def _describe_outage(client: Any) -> str:
    topology = topology_of(client)
    servers = topology.server_descriptions().values()
    if not servers:
        return _NO_MEMBER.format(topology.replica_set_name)
    states = [f"{address_text(each)}: {_state(each)}" for each in servers]
    return f"{'; '.join(states)}. {_NO_PRIMARY}"


def _state(server: Any) -> str:
    """Why a server cannot be used."""
    if server.server_type_name != "Unknown":
        return "it is not primary"
    if found := _SYSTEM_ERROR.search(str(server.error)):
        number = int(found[1])
        is_unresolved = number < 0 or number in _UNRESOLVED
        return "DNS does not know the host" if is_unresolved else os.strerror(number)
    return "it does not answer"


def certificate_refusal(client: Any) -> str | None:
    """Return the message for refused certificates; None if a server has another."""
    refusal = None
    for server in topology_of(client).server_descriptions().values():
        refused = _CERTIFICATE.search(str(server.error))
        if refused is None:
            return None
        reason = f": {refused[1]}" if refused[1] else ""
        refusal = refusal or (
            f"The certificate of MongoDB at {address_text(server)} is not"
            f" accepted{reason}. It must be valid now, issued for that name, and"
            " signed by an authority that the system or tlsCAFile= in the URI trusts."
        )
    return refusal


def address_text(server: Any) -> str:
    host, port = server.address
    return f"{host}:{port}"
