"""Transfer records: what flows from a source to a target.

A source is read as one stream. State that sessions share comes when it is known; a
session's header is followed by its events, in order; what cannot be read comes as a
``Problem`` in its place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TypeAlias

from google.adk.events.event import Event

from mongo_session_service.codec.hooks import Owner
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import SessionKey

Policy: TypeAlias = Literal["fail", "skip", "replace"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which sessions to transfer: all by default."""

    apps: frozenset[str] = frozenset()
    """Names of apps; none means every app."""
    users: frozenset[str] = frozenset()
    """Ids of users; none means every user."""
    since: float | None = None
    """Seconds since 1970: only sessions last updated then or later. The state they
    share is taken whole, since not every store knows when that last changed."""

    def takes_app(self, app_name: str) -> bool:
        """Whether an app's own state is wanted."""
        return not self.apps or app_name in self.apps

    def takes_user(self, app_name: str, user_id: str) -> bool:
        """Whether a user's state is wanted."""
        return self.takes_app(app_name) and (not self.users or user_id in self.users)

    def takes(self, key: SessionKey, update_time: float) -> bool:
        """Whether a session is wanted."""
        is_recent = self.since is None or update_time >= self.since
        return is_recent and self.takes_user(key.app_name, key.user_id)


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state of an app, or of one of its users; keys without their prefix."""

    app_name: str
    user_id: str | None
    state: Mapping[str, Any]

    @property
    def owner(self) -> Owner:
        """Whose it is."""
        return Owner.of_shared(self.app_name, self.user_id)

    def __str__(self) -> str:
        if self.user_id is None:
            return f"state of app {self.app_name!r}"
        return f"state of user {self.user_id!r} in app {self.app_name!r}"


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """A session without its events, and without the state it shares."""

    key: SessionKey
    state: Mapping[str, Any]
    update_time: float
    create_time: float | None = None
    """None if the store keeps none."""
    details: Details | None = None
    """Its title, labels and time to live; None if the store knows nothing of these."""
    initial: Mapping[str, Any] | None = None
    """The state it began with, as ``state``; None if the store keeps none."""

    def has_expired(self, now: float) -> bool:
        """Whether it is none any more."""
        expire_time = self.details.expire_time if self.details else None
        return expire_time is not None and expire_time <= now


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that cannot be transferred, and why; never with its content."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


Item: TypeAlias = SharedState | SessionHeader | Event | Problem


class Totals(NamedTuple):
    """What there is to read."""

    sessions: int
    events: int


class Source(Protocol):
    """Anything sessions can be read from, as an async context manager."""

    @property
    def name(self) -> str:
        """What it is, for people; never with a password."""

    async def __aenter__(self) -> Self:
        """Open it.

        Raises:
            SourceError: it cannot be reached, or is not what it should be.
        """

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close what was opened."""

    async def totals(self, selection: Selection) -> Totals | None:
        """How much there is to read, if that can be known beforehand."""

    def share_read(self) -> float | None:
        """How much has been read, from 0 to 1, if that is known without totals."""

    def read(self, selection: Selection) -> AsyncGenerator[Item]:
        """Everything selected, as one stream, with flat memory."""


def named(key: SessionKey) -> str:
    """A session, as messages call it."""
    return "session {!r} of user {!r} in app {!r}".format(*reversed(key))


@dataclass(slots=True)
class Moved:
    """What a move did; sessions unless said otherwise."""

    started: float
    """Seconds since 1970."""
    new: int = 0
    caught_up: int = 0
    """Of which the target had the beginning."""
    unchanged: int = 0
    ahead: int = 0
    """That were continued in the target; left alone."""
    replaced: int = 0
    skipped: int = 0
    """With other content in the target; left alone."""
    events: int = 0
    """Events written."""
    states: int = 0
    """Shared states written."""
    skipped_states: int = 0
    """Shared states that are other in the target; left alone."""
    expired: int = 0
    """That are none any more; left out."""
    problems: int = 0
    """What could not be read or stored, and was left out."""
    read: int = 0
    """Events read."""

    @property
    def sessions(self) -> int:
        """Sessions read, whatever became of them."""
        written = self.new + self.caught_up + self.replaced
        return written + self.unchanged + self.ahead + self.skipped + self.expired

    @property
    def is_complete(self) -> bool:
        """Whether the target has everything that was selected."""
        return not (self.problems or self.skipped or self.skipped_states)


@dataclass(frozen=True, slots=True)
class Policies:
    """What a move does when things are not as hoped for."""

    on_conflict: Policy = "fail"
    """If the target holds something else under an id."""
    on_error: Literal["fail", "skip"] = "fail"
    """If something cannot be read or stored."""
    is_dry_run: bool = False
    """Whether to find everything out and write nothing."""


CAREFUL: Final = Policies()
"""Whatever is not as hoped for ends the move."""
