"""Consumer checkpoint: a position in the log and its changes, and its erasure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from bson.timestamp import Timestamp

from mongo_session_service.driver.connection import Connection
from mongo_session_service.model.records import Document, SessionKey

_LAST: Final = 2**63 - 1
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
    """What was replayed; during a replay, the last segment is the current one."""
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
        return replace(self, replayed={**self.replayed, "revision": _LAST})

    def reading_later(self, now: Timestamp) -> Position:
        """The same, with the rest of the log read at a later time."""
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
        """The same, known to be current a moment ago."""
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


_LAST_OF_USER: Final = SessionKey("\U0010ffff", "", "").event_id(0)
"""After every event, as MongoDB compares strings: by their bytes."""


async def forget_in_dead_letters(
    connection: Connection, app_name: str, user_id: str | None
) -> int:
    """Remove the dead letters of an app, or of a user; how many there were."""
    wanted = {f"_id.{name}": id_ for name, id_ in _owner(app_name, user_id).items()}
    removed = await connection.dead_letters.delete_many(wanted)
    return int(removed.deleted_count)


async def forget_in_checkpoints(
    connection: Connection, app_name: str, user_id: str | None
) -> int:
    """Remove the IDs of an app, or of a user, from checkpoints; how many had some.

    No consumer receives anything twice, or misses anything that is not erased.
    """
    changed = 0
    cursor = connection.checkpoints.find({"position": {"$ne": None}}, {"_id": 1})
    for name in [each["_id"] for each in await cursor.to_list(None)]:
        while True:
            checkpoint = await connection.checkpoints.find_one({"_id": name})
            if checkpoint is None:
                break
            before = checkpoint["position"]
            after = await _without(connection, before, app_name, user_id)
            if after == before:
                break
            saved = await connection.checkpoints.update_one(
                {"_id": name, "position": before}, {"$set": {"position": after}}
            )
            if saved.matched_count:
                changed += 1
                break
    return changed


async def remove_consumers(connection: Connection, app_name: str) -> int:
    """Remove the consumers of an app's changes; how many there were."""
    found = connection.checkpoints.find({"app_name": app_name}, {"_id": 1})
    names = [each["_id"] for each in await found.to_list(None)]
    await connection.dead_letters.delete_many({"_id.consumer": {"$in": names}})
    # A reader that finds its checkpoint stores its lease again meanwhile.
    leases, checkpoints = connection.leases, connection.checkpoints
    for collection in (leases, checkpoints, leases):
        await collection.delete_many({"_id": {"$in": names}})
    return len(names)


async def _without(
    connection: Connection, position: Document, app_name: str, user_id: str | None
) -> Document:
    """A stored position, moved behind what is erased."""
    owner = _owner(app_name, user_id)

    async def moved(id_: Document | None) -> Document | None:
        if id_ is None or not owner.items() <= id_.items():
            return id_
        return await _end_of(connection, owner)

    replayed = await moved(position["replayed"])
    segments = [
        each | {"until": await moved(each["until"])} for each in position["segments"]
    ]
    return position | {"replayed": replayed, "segments": segments}


def _owner(app_name: str, user_id: str | None) -> Document:
    return {"app_name": app_name} | ({} if user_id is None else {"user_id": user_id})


async def _end_of(connection: Connection, owner: Document) -> Document:
    """An ``_id`` right before the first event after all of an app's, or of a user's."""
    # A document is greater than any text.
    upper = owner | {SessionKey._fields[len(owner)]: {}}
    following = connection.events.find({"_id": {"$gt": upper}}, {"_id": 1})
    for each in await following.sort("_id", 1).limit(1).to_list(None):
        return {**each["_id"], "revision": each["_id"]["revision"] - 1}
    return _LAST_OF_USER
