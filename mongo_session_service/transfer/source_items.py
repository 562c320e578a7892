"""Transfer records: what sources yield, and the options and results of transfers.

A source yields one stream of items: shared state, and session headers, each followed by
the session's events in order. A ``Problem`` takes the place of what cannot be read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, Self, TypeAlias

from google.adk.events.event import Event

from mongo_session_service.codec.hooks import Owner
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import Document, SessionKey

Policy: TypeAlias = Literal["fail", "skip", "replace"]


@dataclass(frozen=True, slots=True)
class Selection:
    """Choice of sessions to transfer: all by default."""

    apps: frozenset[str] = frozenset()
    """Names of apps; empty for every app."""
    users: frozenset[str] = frozenset()
    """Ids of users; empty for every user."""
    since: float | None = None
    """Seconds since 1970: only sessions last updated then or later. The state they
    share is always included: not every store records when it changed."""

    def takes_app(self, app_name: str) -> bool:
        """Tell whether an app's own state is selected."""
        return not self.apps or app_name in self.apps

    def takes_user(self, app_name: str, user_id: str | None) -> bool:
        """Tell whether a user's state is selected, or without a user the app's."""
        is_chosen = user_id is None or not self.users or user_id in self.users
        return is_chosen and self.takes_app(app_name)

    def takes(self, key: SessionKey, update_time: float) -> bool:
        """Tell whether a session is selected."""
        is_recent = self.since is None or update_time >= self.since
        return is_recent and self.takes_user(key.app_name, key.user_id)

    def matching(self, prefix: str = "") -> Document:
        """Return MongoDB's filter for the apps and users, in fields with a prefix."""
        chosen = {"app_name": self.apps, "user_id": self.users}
        return {
            prefix + name: {"$in": sorted(names)}
            for name, names in chosen.items()
            if names
        }


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state of an app, or of one of its users; keys without prefix."""

    app_name: str
    user_id: str | None
    state: Mapping[str, Any]
    revision: int | None = None
    """How often it was changed; None if the store does not count that."""

    @property
    def owner(self) -> Owner:
        """The app or user."""
        return Owner.of_shared(self.app_name, self.user_id)

    def __str__(self) -> str:
        if self.user_id is None:
            return f"state of app {self.app_name!r}"
        return f"state of user {self.user_id!r} in app {self.app_name!r}"


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """A session without its events and without shared state."""

    key: SessionKey
    state: Mapping[str, Any]
    update_time: float
    create_time: float | None = None
    """None if the store does not record it."""
    details: Details | None = None
    """Title, labels and time to live; None if the store does not record them."""
    initial: Mapping[str, Any] | None = None
    """The initial state, without shared state; None if it is not recorded."""
    revision: int | None = None
    """Its last event's; None if the store does not count them."""
    log_begins: int = 0
    """The revision after which its log begins, and that its initial state is of."""
    forked_from: Sequence[Document] = ()
    """The sessions it is a fork of, as they are stored."""

    def has_expired(self, now: float) -> bool:
        """Tell whether its time to live is over."""
        expire_time = self.details.expire_time if self.details else None
        return expire_time is not None and expire_time <= now


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that cannot be transferred, and why; never quotes content."""

    where: str
    reason: str

    def __str__(self) -> str:
        # It becomes a part of sentences, and may be one: the message of an error.
        return f"{self.where}: {self.reason}".rstrip(".")


Item: TypeAlias = SharedState | SessionHeader | Event | Problem


class Source(Protocol):
    """Anything that sessions can be read from; an async context manager."""

    @property
    def name(self) -> str:
        """A description for people; never has a password."""

    async def __aenter__(self) -> Self:
        """Open it.

        Raises:
            SourceError: it cannot be reached, or holds something else.
        """

    async def __aexit__(self, *exc: object) -> None:
        """Close it."""

    async def count_events(self, selection: Selection) -> int | None:  # noqa: ARG002
        """Count the events to read; None if that is not known beforehand."""
        return None

    def share_read(self) -> float | None:
        """The fraction that has been read, from 0 to 1, if known without a count."""
        return None

    def read(self, selection: Selection) -> AsyncGenerator[Item]:
        """Yield everything selected as one stream, in bounded memory."""


ALTERED: Final = "it is not as this package stores it; has another tool changed it?"


def session_text(key: SessionKey) -> str:
    """Name a session in messages."""
    return "session {!r} of user {!r} in app {!r}".format(*reversed(key))


@dataclass(slots=True)
class Moved:
    """The result of an import; counts are of sessions unless said otherwise."""

    started: float
    """Seconds since 1970."""
    new: int = 0
    caught_up: int = 0
    """Sessions whose first events the target had; the rest was added."""
    unchanged: int = 0
    ahead: int = 0
    """Sessions to which events were appended in the target; not changed."""
    replaced: int = 0
    skipped: int = 0
    """Sessions with other content in the target; not changed."""
    events: int = 0
    """Events written."""
    states: int = 0
    """Shared states written."""
    ahead_states: int = 0
    """Shared states that were changed in the target only; not changed."""
    skipped_states: int = 0
    """Shared states with other content in the target; not changed."""
    expired: int = 0
    """Expired sessions; left out."""
    problems: int = 0
    """Things that could not be read or stored; left out."""
    read: int = 0
    """Events read."""

    @property
    def sessions(self) -> int:
        """Sessions read."""
        written = self.new + self.caught_up + self.replaced
        return written + self.unchanged + self.ahead + self.skipped + self.expired

    @property
    def is_complete(self) -> bool:
        """Tell whether the target has everything that was selected."""
        return not (self.problems or self.skipped or self.skipped_states)


@dataclass(frozen=True, slots=True)
class Policies:
    """The reactions of an import to conflicts and problems."""

    on_conflict: Policy = "fail"
    """If the target has other content under an id."""
    on_error: Literal["fail", "skip"] = "fail"
    """If something cannot be read or stored."""
    is_dry_run: bool = False
    """Whether to compare everything and write nothing."""


CAREFUL: Final = Policies()
"""Any conflict or problem ends the import."""
