"""What can happen, as it is stored; decoded when somebody wants to know.

The application's hook is asked no sooner either: until then, values are as it made them
to be stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mongo_session_service.codec.bson_values import UnreadableError, decode_value
from mongo_session_service.codec.documents import decode_event, decode_state
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.errors import StorageError, quoted
from mongo_session_service.model.records import SessionKey

from .change import Change

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Appended:
    """An event was appended."""

    key: SessionKey
    document: Document
    hooks: Hooks = field(repr=False, compare=False)

    def change(self) -> Change:
        """The change subscribers get.

        Raises:
            StorageError: the event is not one that this release of ADK can read, or the
                application's hook failed.
        """
        event = decode_event(self.document, self.hooks)
        return Change(
            kind="appended",
            **self.key.id,
            revision=self.document["_id"]["revision"],
            event=event,
            state_delta=event.actions.state_delta,
            time=event.timestamp,
        )

    def delta(self) -> Document:
        """What the event set in state, as stored, keys prefixed by scope.

        Nothing, if that is none of ours: whoever reads the event is told so.
        """
        actions = self.document["event"].get("actions")
        delta = actions.get("state_delta") if isinstance(actions, dict) else None
        try:
            delta = decode_value(delta)
        except UnreadableError:
            return {}
        return delta if isinstance(delta, dict) else {}


@dataclass(frozen=True, slots=True)
class Created:
    """A session was created."""

    key: SessionKey
    document: Document
    hooks: Hooks = field(repr=False, compare=False)

    def change(self) -> Change:
        """The change subscribers get: of its initial state, the session's own.

        Raises:
            StorageError: the state is not as this package stores it, or the
                application's hook failed.
        """
        owner = Owner.of_session(self.key)
        return Change(
            kind="created",
            **self.key.id,
            revision=self.document["revision"],
            state_delta=decode_state(self.document["state"], owner, self.hooks),
            time=self.document["create_time"],
        )


@dataclass(frozen=True, slots=True)
class Deleted:
    """A session was deleted."""

    key: SessionKey
    time: float

    def change(self) -> Change:
        """The change subscribers get."""
        return Change(kind="deleted", **self.key.id, time=self.time)


@dataclass(frozen=True, slots=True)
class StateSet:
    """State that sessions share was set: an app's, or a user's."""

    app_name: str
    user_id: str | None
    delta: Document
    """As stored, keys prefixed by scope; empty if each had its value before."""
    time: float
    hooks: Hooks = field(repr=False, compare=False)

    def change(self) -> Change:
        """The change subscribers get.

        Raises:
            StorageError: the application's hook failed.
        """
        owner = Owner(self.app_name, self.user_id)
        return Change(
            kind="state",
            app_name=self.app_name,
            user_id=self.user_id,
            state_delta=self.hooks.loaded_state(self.delta, owner),
            time=self.time,
        )


@dataclass(frozen=True, slots=True)
class Unkept:
    """Something of which only its name was kept, as a dead letter."""

    id: Document
    """The dead letter's."""

    def change(self) -> Change:
        """Nothing: it is not known any more.

        Raises:
            StorageError: always.
        """
        kind, session_id = self.id["kind"], self.id.get("session_id")
        where = "the state" if session_id is None else f"session {quoted(session_id)}"
        message = (
            f"The change {kind!r} was too large to be kept with the error it was given"
            f" up for: read {where} itself."
        )
        raise StorageError(message)


Happening = Appended | Created | Deleted | StateSet
