"""Turn filters: a subscriber receives nothing of a turn twice, or when it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, TypeVar

from mongo_session_service.changes.change import Change
from mongo_session_service.model.records import SessionKey

_STORED_EVENTS: Final = 256
"""Stored events by which late partials are known: these are late by a second or so."""

_SESSIONS: Final = 4096
"""Sessions whose creation or running turn is known: those that changed last."""

_TURN_END: Final = 2**63
"""A position after every other of a turn."""


_Kept = TypeVar("_Kept")


class TurnFilter:
    """Leaves out what a subscriber has received of a session's turns already.

    Partials come by another change stream than what is stored, and neither waits for
    the other. So a partial may arrive after its event, or after the next turn's begin.
    """

    def __init__(self, epoch: int = 0, position: int = 0) -> None:
        self.received = (epoch, position)
        self._stored: deque[str] = deque(maxlen=_STORED_EVENTS)

    def add_stored(self, event_ids: Iterable[str]) -> None:
        """Leave out what is still to come of these events."""
        self._stored.extend(event_ids)

    def skip_turn(self, epoch: int) -> None:
        """Leave out what is still to come of a turn that has ended."""
        self.received = max(self.received, (epoch, _TURN_END))

    def admit(self, change: Change) -> bool:
        """Count a ``partial`` or ``turn`` as received; False to leave it out."""
        if change.turn is None or change.turn_position is None:
            return False
        place = (change.turn.epoch, change.turn_position)
        if place <= self.received:
            return False
        self.received = place
        return change.event is None or change.event.id not in self._stored


class TurnFilters:
    """Filters of many sessions, each named by its creation as well.

    Of a turn that had begun before, only the status is let through: the beginning of
    its partials is missing. Of a session that was made anew, nothing of the former one
    is, which the other change stream may bring later.
    """

    def __init__(self) -> None:
        self._running: dict[SessionKey, tuple[float, TurnFilter]] = {}
        """The creation of each session whose turn runs, and the turn's filter."""
        self._created: dict[SessionKey, float] = {}
        """When sessions were created: late turns of former ones are known by it."""

    def admit(self, change: Change) -> bool:
        """Count a change as received; False to leave it out."""
        key, turn = change.session_key, change.turn
        if key is None:
            return True
        if turn is None:
            self._note_stored(key, change)
            return True
        known, running = self._running.get(key, (0.0, None))
        # An earlier release does not name it.
        created = turn.session_create_time or known
        if self._created.get(key, created) != created:
            return False
        if created != known:
            running = None
        if running is not None:
            _keep_latest(self._running, key, (created, running))
        if change.kind == "partial":
            return running is not None and running.admit(change)
        epoch = running.received[0] if running else 0
        if turn.epoch > epoch and turn.status == "running":
            begun = created, TurnFilter(turn.epoch)
            _keep_latest(self._running, key, begun)
        elif turn.epoch == epoch and turn.status not in {"running", "stopping"}:
            del self._running[key]
        return True

    def _note_stored(self, key: SessionKey, change: Change) -> None:
        known, running = self._running.get(key, (0.0, None))
        if change.kind == "created":
            _keep_latest(self._created, key, change.time)
        elif running and change.kind == "deleted" and known <= change.time:
            del self._running[key]
        elif running and change.kind == "appended" and change.event:
            running.add_stored([change.event.id])


def _keep_latest(kept: dict[SessionKey, _Kept], key: SessionKey, value: _Kept) -> None:
    """Set what is kept of a session, and drop what was set longest ago.

    Nothing else would: a process that dies ends no turn.
    """
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > _SESSIONS:
        del kept[next(iter(kept))]
