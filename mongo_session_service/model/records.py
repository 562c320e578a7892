"""Records: keys, scopes of state and the values that the store works with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from google.adk.sessions.state import State

from mongo_session_service._public import public
from mongo_session_service.model.metadata import (
    NO_DETAILS,
    NOT_GIVEN,
    NotGiven,
    StoredDetails,
)
from mongo_session_service.model.results import WaitingCall
from mongo_session_service.model.validation import check_id, lookup_id

Document = dict[str, Any]
"""Document as the driver reads and writes it."""


@public
class SessionKey(NamedTuple):
    """The triple that names a session; no part is ever joined with another."""

    app_name: str
    user_id: str
    session_id: str

    @property
    def id(self) -> dict[str, Any]:
        """The session document's ``_id``; the order of its fields is its identity."""
        app_name, user_id, session_id = self
        return {"app_name": app_name, "user_id": user_id, "session_id": session_id}

    def event_id(self, revision: int) -> dict[str, Any]:
        """The ``_id`` of the event that produced ``revision``."""
        return {**self.id, "revision": revision}


class FamilyKey(NamedTuple):
    app_name: str
    user_id: str
    family: str

    @property
    def id(self) -> dict[str, Any]:
        """The ``_id`` of the family's document."""
        return self._asdict()

    def session_key(self, session_id: str) -> SessionKey:
        return SessionKey(self.app_name, self.user_id, session_id)


SHARD_KEY: Final = SessionKey._fields[:2]
"""The fields of every ``_id`` by which a sharded cluster spreads the documents."""


@dataclass(slots=True)
class ScopedState:
    """State by scope, its keys without the prefix that names the scope in a flat state.

    ``app:`` and ``user:``, none for the session, and ``temp:`` for the current
    invocation, which is never stored.
    """

    app: dict[str, Any] = field(default_factory=dict)
    user: dict[str, Any] = field(default_factory=dict)
    session: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def split(
        cls, state: Mapping[str, Any], name_of: Callable[[str], str] = str
    ) -> ScopedState:
        """Sort a flat state into its scopes, without ``temp:`` keys, by these names."""
        app: dict[str, Any] = {}
        user: dict[str, Any] = {}
        session: dict[str, Any] = {}
        for key, value in state.items():
            if ":" not in key:  # as most are
                session[name_of(key)] = value
            elif key.startswith(State.APP_PREFIX):
                app[name_of(key.removeprefix(State.APP_PREFIX))] = value
            elif key.startswith(State.USER_PREFIX):
                user[name_of(key.removeprefix(State.USER_PREFIX))] = value
            elif not key.startswith(State.TEMP_PREFIX):
                session[name_of(key)] = value
        return cls(app, user, session)

    def merged(self) -> dict[str, Any]:
        """The flat state that an agent sees: the inverse of :meth:`split`."""
        return {
            **self.session,
            **{State.APP_PREFIX + key: value for key, value in self.app.items()},
            **{State.USER_PREFIX + key: value for key, value in self.user.items()},
        }

    def mapped(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> ScopedState:
        """The same, each scope's part changed."""
        return ScopedState(*map(change, (self.app, self.user, self.session)))


class Marker(NamedTuple):
    """Version of a session: the expected revision of its next append, and more.

    ``create_time`` distinguishes a session from a later one of the same id.
    """

    revision: int
    create_time: float
    ttl: float | None = None
    """Time to live, which an append renews without having to read it first."""
    expires: bool = False
    """Whether it ends at some time, so that an append has to ask the server for it."""

    def after_append(self) -> Marker:
        return Marker._make((self.revision + 1, *self[1:]))

    def describe_change(self, stored: Marker) -> str:
        """The middle of a sentence about what has become of the session since."""
        if self.create_time != stored.create_time:
            return "it was deleted and created again"
        return f"it went from revision {self.revision} to {stored.revision}"


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session about to be stored, its state encoded."""

    key: SessionKey
    create_time: float
    delta: ScopedState
    """Its initial state, which is a delta to that of its app and user."""
    size: int
    """Bytes of the state."""
    details: StoredDetails = NO_DETAILS
    log_begins: int = 0
    """The revision that the state is of: the source's log was trimmed."""
    forked_from: Sequence[Document] = ()
    """The sessions it is a fork of, directly or not."""

    @property
    def expected(self) -> Marker:
        """The marker before it is stored, at revision 0."""
        expires = self.details.expire_time is not None
        return Marker(-1, self.create_time, self.details.ttl, expires)


class Birth(NamedTuple):
    """A fork whose events are copied, which is stored in place of its reservation."""

    document: Document
    """Its session's."""
    beside: Sequence[Any]
    """Statements that are written with it."""
    held: Document
    """The filter of the reservation, as long as that is held."""
    source: Document
    """The filter of the session that it is made of."""
    log: tuple[int, int]
    """Where the source's log began, and how often it was redacted, when it was read."""
    before: str | None = None
    """Of a branch, the source's invocation that comes next there."""
    repeats: bool = False
    """Whether its own first event repeats the source's next one."""


class TurnFence(NamedTuple):
    """Held turn of a session: its epoch, and the session's creation time.

    One that was deleted and created again counts its turns from the beginning.
    """

    epoch: int
    create_time: float
    birth: Birth | None = None
    """The branch that is stored with its first event."""


class WaitingStep(NamedTuple):
    """The effect of one event on the calls that wait."""

    invocation_id: str = ""
    asks: tuple[WaitingCall, ...] = ()
    """Calls that begin to wait, their revision still unknown."""
    answers: frozenset[str] = frozenset()
    """Ids of calls that wait no longer."""
    rewinds_before: str | None = None
    """The invocation that it undoes, and all that followed."""

    @property
    def has_effect(self) -> bool:
        """False of most events."""
        return bool(self.asks or self.answers or self.rewinds_before)


class Append(NamedTuple):
    """An event about to be stored, encoded together with its effect on state."""

    key: SessionKey
    event_id: str
    timestamp: float
    flags: Document
    """The fields beside the sub-document: whether reading has to unwrap values of it,
    and whether the application's hook has to change it back."""
    delta: ScopedState
    encoded: bytes
    """The sub-document as BSON, which is handed to the server as it is."""
    size: int
    """Bytes of that."""
    fence: TurnFence | None = None
    """The turn that it belongs to, which must not have been taken over."""
    title: str | NotGiven | None = NOT_GIVEN
    """The session's new title, if it changes; None for none."""
    waiting: WaitingStep = WaitingStep()
    """Its questions to people, or answers for them."""

    @property
    def birth(self) -> Birth | None:
        return self.fence.birth if self.fence else None


def session_key(app_name: str, user_id: str, session_id: str) -> SessionKey:
    """The checked key of a session, its id stripped as ADK's own services do."""
    if isinstance(session_id, str):
        session_id = str.strip(session_id)
    return SessionKey(
        check_id("app_name", app_name),
        check_id("user_id", user_id),
        check_id("session_id", session_id),
    )


def lookup_key(app_name: str, user_id: str, session_id: str) -> SessionKey | None:
    """The key to look a session up by; None if no session can have these ids."""
    if isinstance(session_id, str):
        session_id = str.strip(session_id)
    app = lookup_id("app_name", app_name)
    user = lookup_id("user_id", user_id)
    session = lookup_id("session_id", session_id)
    if app is None or user is None or session is None:
        return None
    return SessionKey(app, user, session)
