"""Errors: one tree for everything that can go wrong.

::

    MongoSessionServiceError
    ├── ConfigurationError        how the service was built, or the server it was given
    ├── InvalidInputError         an argument it will not store (also a ValueError)
    ├── SchemaVersionError        data, or one session, written by a newer release
    ├── SlowSubscriberError       a subscription was read too slowly
    ├── HistoryLostError          changes were missed that the oplog no longer holds
    ├── LeaseLostError            a consumer's name, or a turn, was taken over
    ├── StorageError              MongoDB refused or failed
    │   ├── DocumentTooLargeError       over the document limit (also a ValueError)
    │   ├── NotAuthorizedError          the user lacks a privilege
    │   └── StorageUnavailableError     worth trying again; nothing was changed
    │       └── UnknownOutcomeError         or it was: the outcome is unknown
    └── TransferError             an import, export or verification stopped
        ├── SourceError                 what is to be read cannot be
        └── ConflictError               the target holds something else under an id

Where ADK defines an error for the situation, ADK's own is raised instead:
``AlreadyExistsError``, ``SessionNotFoundError`` and ``StaleSessionError``.

No message holds a password or a state value, so a driver error whose text may
quote a document is never chained.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from mongo_session_service._public import public

if TYPE_CHECKING:  # the command line answers without ADK, which takes a second
    from google.adk.errors import StaleSessionError
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError

_LONGEST_NAME: Final = 100  # characters
_SECRETS: Final = re.compile(
    r"((?:password|pwd|authmechanismproperties)=)[^&\s'\"]+", re.IGNORECASE
)
"""The options of URIs that are secret."""


def without_passwords(text: str) -> str:
    """Remove the passwords of URIs, which may stand where another thing was meant.

    Of a login, rather too much is removed than a part.
    """
    scheme, mark, rest = text.partition(":/")
    _, at, hosts = rest.rpartition("@")
    if mark and at:
        slashes = rest[: len(rest) - len(rest.lstrip("/"))]
        text = f"{scheme}{mark}{slashes}...@{hosts}"
    return _SECRETS.sub(r"\1...", text)


def quoted(name: str) -> str:
    """Quote a name for a message, shortened if it is too long to be read."""
    name = without_passwords(name)
    return repr(name if len(name) <= _LONGEST_NAME else name[:_LONGEST_NAME] + "...")


@public
class MongoSessionServiceError(Exception):
    """The session service could not do what was asked."""

    def __init__(self, message: str | None = None, *, hint: str = "") -> None:
        """An error with a message for everybody.

        Args:
            message: What went wrong, and what to do about it.
            hint: Advice for authors of programs. ``str()`` ends with it; the command
                line, which has no such argument, leaves it out.
        """
        self.message = message or str(inspect.getdoc(type(self)))
        self.hint = hint
        super().__init__(self.message)

    @override
    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


@public
class ConfigurationError(MongoSessionServiceError):
    """The service was built with arguments, or on a server, it cannot work with."""


@public
class InvalidInputError(MongoSessionServiceError, ValueError):
    """An argument cannot be stored; nothing was changed."""


@public
class TrimmedError(InvalidInputError):
    """A revision was asked for that lies before the log of a session that was trimmed.

    ``log_begins`` is the earliest revision that there is.
    """

    def __init__(self, log_begins: int) -> None:
        """The log begins after a revision."""
        self.log_begins = log_begins
        super().__init__(
            f"The session was trimmed: its log begins after revision {log_begins}, and"
            " nothing earlier can be read. Ask for that revision or a later one."
        )

    def __reduce__(self) -> tuple[type[TrimmedError], tuple[int]]:
        return type(self), (self.log_begins,)


@public
class SchemaVersionError(MongoSessionServiceError):
    """A newer release wrote the database, or a session: upgrade mongo-session-service.

    Of a session, the message names what it needs. Lists leave it out with a warning.
    """


@public
class SlowSubscriberError(MongoSessionServiceError):
    """A subscription was read too slowly, and its buffer overflowed."""

    def __init__(self, last_revision: int | None, place: str | None = None) -> None:
        """Ends a subscription that has delivered up to ``last_revision``.

        None if it is not one to a session, or has delivered nothing. To go on there,
        give ``place`` to ``watch`` as its ``after_revision``.
        """
        self.last_revision = last_revision
        self.place = place
        how = "Subscribe again"
        if place is not None:
            how = f"Resume with watch(after_revision={place!r})"
        super().__init__(f"The subscription was read too slowly and was ended. {how}.")

    def __reduce__(self) -> tuple[type[SlowSubscriberError], tuple[object, ...]]:
        return type(self), (self.last_revision, self.place)


@public
class HistoryLostError(MongoSessionServiceError):
    """Changes were missed that are no longer in MongoDB's oplog."""


@public
class LeaseLostError(MongoSessionServiceError):
    """Another process has taken over a consumer's name, or the turn of a session.

    Nothing was stored.
    """


class TurnTakenError(TimeoutError):
    """The turn of a session was not free in time."""


class TurnInterruptedError(TurnTakenError):
    """A later caller, who interrupts, has come before one that waits for the turn."""


@public
class StorageError(MongoSessionServiceError):
    """MongoDB refused or failed the operation."""


@public
class DocumentTooLargeError(StorageError, ValueError):
    """A document would exceed MongoDB's 16 MB limit; nothing was changed.

    Set large keys of the session's state to None first, to make room.
    """


@public
class NotAuthorizedError(StorageError):
    """MongoDB refused: the user lacks a privilege."""


@public
class StorageUnavailableError(StorageError):
    """MongoDB could not be reached or did not answer in time; try again."""


@public
class UnknownOutcomeError(StorageUnavailableError):
    """MongoDB stopped answering during a write, which may have been done or not."""


class TransferError(MongoSessionServiceError):
    """A transfer stopped; what was moved stays, and a repeated call resumes there."""


class SourceError(TransferError):
    """The source, or something in it, cannot be read."""


class ConflictError(TransferError):
    """The target holds something else under the same id."""


def stale_session_error(session_id: str, change: str = "") -> StaleSessionError:
    """Make the error for an append to a session that has moved on, in some way."""
    from google.adk.errors import StaleSessionError

    how = f": {change}" if change else ""
    return StaleSessionError(
        f"Session {quoted(session_id)} was modified in storage after it was loaded"
        f"{how}. Nothing was stored. Reload it with get_session() and append again;"
        " with a Runner, run the turn again. If requests overlap, let them wait for"
        " each other with turn() or run_turn(); if several writers are usual, build the"
        " service with on_conflict='rebase'."
    )


def turn_lost_error(session_id: str) -> LeaseLostError:
    """Make the error for an append within a turn that was taken over."""
    return LeaseLostError(
        f"The turn of session {quoted(session_id)} was taken over, since it was not"
        " renewed in time: its process was paused, or cut off from MongoDB. Nothing was"
        " stored. Take a new turn, and repeat what the stored events do not contain."
    )


def turn_stopped_error(session_id: str) -> LeaseLostError:
    """Make the error for an append by what was stopped, and has not noticed."""
    return LeaseLostError(
        f"The turn of session {quoted(session_id)} was stopped. Nothing was stored."
    )


def turn_interrupted_error(session_id: str) -> TurnInterruptedError:
    """Make the error for a start whose place in line a later one has taken."""
    return TurnInterruptedError(
        "A later start with interrupt=True came before this one had the turn of"
        f" session {quoted(session_id)}. Nothing of this one was stored."
    )


def service_closed_error() -> MongoSessionServiceError:
    """Make the error for a call that waits while the service is closed."""
    return MongoSessionServiceError("The service was closed meanwhile.")


def session_not_found_error(session_id: str, why: str = "") -> SessionNotFoundError:
    """Make the error for a session that is not stored, or not any more."""
    from google.adk.errors.session_not_found_error import SessionNotFoundError

    return SessionNotFoundError(f"Session {quoted(session_id)} not found{why}.")


def session_exists_error(session_id: str) -> AlreadyExistsError:
    """Make the error for a session that is to be created and is stored already."""
    from google.adk.errors.already_exists_error import AlreadyExistsError

    return AlreadyExistsError(f"Session {quoted(session_id)} already exists.")
