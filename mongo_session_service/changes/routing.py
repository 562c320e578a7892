"""Change routing: from a change to its subscribers, by key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from google.adk.sessions.state import State

from mongo_session_service.changes.decoder import ChangeRecord
from mongo_session_service.model.records import Document, ScopedState, SessionKey


class Scope(NamedTuple):
    """Scope of a subscription: a session, a user, an app, or everything."""

    app_name: str | None = None
    user_id: str | None = None
    session_id: str | None = None

    @property
    def is_session(self) -> bool:
        return self.session_id is not None

    def covers(self, key: SessionKey) -> bool:
        pairs = zip(self, key, strict=True)
        return all(own is None or own == part for own, part in pairs)


class Subscriber(Protocol):
    """Anything with a scope that changes can be routed to."""

    @property
    def scope(self) -> Scope: ...


_Subscriber = TypeVar("_Subscriber", bound=Subscriber)

_STATE: Final = None
"""What a topic begins with that is the state of an app or a user, and no name."""


class Router(Generic[_Subscriber]):
    """The subscribers of a feed, by topic."""

    def __init__(self) -> None:
        self._by_topic: dict[Hashable, set[_Subscriber]] = defaultdict(set)
        self._all: set[_Subscriber] = set()
        self._transaction: object = None
        self._writes: dict[Hashable, dict[str, _Write]] = {}
        self._removed: set[SessionKey] = set()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[_Subscriber]:
        return iter(list(self._all))

    def attach(self, subscriber: _Subscriber) -> None:
        """Route to a subscriber from now on; idempotent."""
        self._all.add(subscriber)
        for topic in _topics(subscriber.scope):
            self._by_topic[topic].add(subscriber)

    def detach(self, subscriber: _Subscriber) -> None:
        """Stop routing to a subscriber; idempotent."""
        self._all.discard(subscriber)
        for topic in _topics(subscriber.scope):
            self._by_topic[topic].discard(subscriber)
            if not self._by_topic[topic]:
                del self._by_topic[topic]

    def recipients(self, record: ChangeRecord) -> list[_Subscriber]:
        found: list[_Subscriber] = []
        for topic in _topics_of(record):
            found += self._by_topic.get(topic, ())
        return found

    def route(self, record: ChangeRecord) -> list[tuple[_Subscriber, ChangeRecord]]:
        """Return the next change's subscribers, each with the part that it lacks.

        Shared state is written once for all the appends of a transaction, after their
        events. A subscriber that receives such an append knows its part already. Nobody
        receives the deletion of a tombstone.
        """
        transaction = record.transaction
        if transaction is None or transaction != self._transaction:
            self._transaction = transaction
            self._writes = {}
            self._removed = set()
        if record.kind == "tombstone":
            self._removed.add(record.key)
            return []
        if record.kind == "state":
            return list(self._route_state(record))
        if record.kind == "deleted" and record.owner in self._removed:
            return []
        if record.kind == "appended" and transaction is not None:
            self._remember(record)
        return [(each, record) for each in self.recipients(record)]

    def _remember(self, appended: ChangeRecord) -> None:
        if not (delta := appended.shared_delta):
            return
        app_name, user_id, _ = key = appended.key
        shared = ScopedState.split(delta)
        for owner, part in (
            ((app_name,), shared.app),
            ((app_name, user_id), shared.user),
        ):
            writes = self._writes.setdefault(owner, {})
            for name, value in part.items():
                writers = writes[name].writers if name in writes else set()
                writes[name] = _Write(key, value, writers | {key})

    def _route_state(
        self, record: ChangeRecord
    ) -> Iterator[tuple[_Subscriber, ChangeRecord]]:
        delta: Document = record.content["delta"]
        prefix = State.APP_PREFIX if len(record.owner) == 1 else State.USER_PREFIX
        writes = self._writes.get(record.owner, {})
        keys = {key for write in writes.values() for key in write.writers}
        for each in self.recipients(record):
            scope = each.scope
            # Nearly all subscribers are to single sessions.
            has_written = (
                scope in keys  # type: ignore[comparison-overlap]  # both are tuples
                if scope.is_session
                else any(map(scope.covers, keys))
            )
            if has_written:
                if unknown := _unknown_part(delta, prefix, writes, scope):
                    yield each, replace(record, content={"delta": unknown})
            elif delta:
                yield each, record


class _Write(NamedTuple):
    """A key of shared state that appends of a transaction have set."""

    key: SessionKey
    """The session of the last append that set it."""
    value: Any
    writers: set[SessionKey]
    """The sessions of all appends that set it."""


def _unknown_part(
    delta: Document, prefix: str, writes: dict[str, _Write], scope: Scope
) -> Document:
    """Return the part of a shared state's write that a scope's own events lack."""
    unknown = {
        prefixed: value
        for prefixed, value in delta.items()
        if not _is_known_value(writes.get(prefixed.partition(":")[2]), value, scope)
    }
    # The transaction as a whole may have left a key unchanged, so that the write lacks
    # it. A subscriber whose event set it, but not last, still needs the final value.
    for name, write in writes.items():
        if not scope.covers(write.key) and any(map(scope.covers, write.writers)):
            unknown.setdefault(prefix + name, write.value)
    return unknown


def _is_known_value(write: _Write | None, value: Any, scope: Scope) -> bool:
    if write is None or not scope.covers(write.key):
        return False
    return repr(write.value) == repr(value)  # type for type, and NaN is NaN


def _topics(scope: Scope) -> list[Hashable]:
    """What it names, and the states of which it shows a part."""
    names = tuple(name for name in scope if name is not None)
    wider = (names[:length] for length in range(1, len(names)))
    return [names, *((_STATE, *each) for each in wider)]


def _topics_of(record: ChangeRecord) -> list[Hashable]:
    # A session that is created has no subscribers of its own yet.
    longest = len(record.owner) - (record.kind == "created")
    wider = [record.owner[:length] for length in range(longest + 1)]
    return [*wider, (_STATE, *record.owner)] if record.kind == "state" else [*wider]
