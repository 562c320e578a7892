"""Position: a place in the log and its changes, after which a consumer resumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from bson.timestamp import Timestamp

from mongo_session_service.model.records import Document

_HIGHEST: Final = 2**63 - 1
"""A revision that no session reaches."""


class Segment(NamedTuple):
    """A part of the log that was replayed at one point in time."""

    until: Document | None
    """The ``_id`` of its last event; None if it extends to the end of the log."""
    at: Timestamp


@dataclass(frozen=True, slots=True)
class Position:
    """A position in the log and its changes, to resume after.

    A replay reads the log in the order of its ``_id``, while the log grows anywhere. So
    it reads at one time of the deployment's clock, or at a few if it takes long. The
    changes since the first of these times follow, except those the replay has read.
    """

    start: Timestamp | Document
    """Where the change stream resumes: a time, or the resume token of an empty reply.

    The token of a change holds its ``_id`` in clear, and no IDs are stored here.
    """
    at: Timestamp
    """When the latest delivered change was committed."""
    is_replaying: bool = False
    replayed: Document | None = None
    """The ``_id`` of the latest event that was replayed."""
    segments: tuple[Segment, ...] = ()
    """Parts of the log that were replayed; during a replay the last is the current."""
    passed: str | None = None
    """The mark of the last change of that time that was delivered; None if none."""

    @classmethod
    def at_end(cls, now: Timestamp) -> Position:
        """Before everything that happens from now on."""
        # A stream begins with what was committed at its start.
        return cls(start=Timestamp(now.time, now.inc + 1), at=now)

    @classmethod
    def at_beginning(cls, now: Timestamp) -> Position:
        """Before the log as it is now, and everything that happens afterwards."""
        return cls(now, now, is_replaying=True, segments=(Segment(None, now),))

    @property
    def reading_at(self) -> Timestamp:
        """The time at which a replay reads the log."""
        return self.segments[-1].at

    def after_replayed(self, id_: Document) -> Position:
        """After one more event of a replay."""
        return replace(self, replayed=id_)

    def after_session(self) -> Position:
        """After all events of the session that is being replayed."""
        if self.replayed is None:
            return self
        return replace(self, replayed={**self.replayed, "revision": _HIGHEST})

    def reading_later(self, now: Timestamp) -> Position:
        """This position, with the rest of the log read at a later time."""
        if self.replayed is None:
            return Position.at_beginning(now)
        last = self.segments[-1]._replace(until=self.replayed)
        return replace(self, segments=(*self.segments[:-1], last, Segment(None, now)))

    def after_replay(self) -> Position:
        """After the replay, before the changes since it started."""
        return replace(self, is_replaying=False, replayed=None)

    def after_change(self, mark: str, at: Timestamp) -> Position:
        """After one more change of the stream."""
        is_past = not self.segments or at > self.segments[-1].at
        segments = () if is_past else self.segments
        return replace(self, start=at, at=at, segments=segments, passed=mark)

    def after_silence(self, token: Document) -> Position:
        """After what the stream has skipped."""
        return replace(self, start=token, passed=None)

    def as_of(self, now: Timestamp) -> Position:
        """This position, known to be current a moment ago."""
        return replace(self, at=max(self.at, now))

    def has_replayed(self, id_: Document, at: Timestamp) -> bool:
        """Whether a replay has read an event that was appended at a time."""
        for segment in self.segments:
            if segment.until is None or _order(id_) <= _order(segment.until):
                return at <= segment.at
        return False


def _order(id_: Mapping[str, Any]) -> tuple[bytes, bytes, bytes, int]:
    """A sort key like MongoDB's, which compares strings by their bytes."""
    return (
        id_["app_name"].encode(),
        id_["user_id"].encode(),
        id_["session_id"].encode(),
        id_["revision"],
    )


def encode_position(position: Position) -> Document:
    """A position as a checkpoint holds it."""
    start = position.start
    is_time = isinstance(start, Timestamp)
    return {
        "start_at": start if is_time else None,
        "token": None if is_time else start,
        "passed": position.passed,
        "at": position.at,
        "is_replaying": position.is_replaying,
        "replayed": position.replayed,
        "segments": [segment._asdict() for segment in position.segments],
    }


def decode_position(document: Document) -> Position:
    """The inverse of :func:`encode_position`."""
    return Position(
        start=document["start_at"] or document["token"],
        at=document["at"],
        is_replaying=document["is_replaying"],
        replayed=document["replayed"],
        segments=tuple(Segment(**each) for each in document["segments"]),
        passed=document["passed"],
    )
