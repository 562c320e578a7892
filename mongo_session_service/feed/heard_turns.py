"""Heard turns: what a subscriber has received of running turns, and so what is due.

What turns say comes by another change stream than what they store, and neither waits
for the other. So a partial may arrive after its event, or after the next turn's begin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from mongo_session_service.changes.change import Change
from mongo_session_service.model.records import SessionKey

_LATEST: Final = 256
"""Stored events by which late partials are known: these are late by a second or so."""


_END: Final = 2**63
"""A position after every other."""


class HeardTurn:
    """Record of what was received of the turns of one session."""

    def __init__(self, epoch: int = 0, position: int = 0) -> None:
        self._received = (epoch, position)
        self._stored: deque[str] = deque(maxlen=_LATEST)

    def note_stored(self, event_ids: Iterable[str]) -> None:
        """Note events that were received whole, or are in the log."""
        self._stored.extend(event_ids)

    def note_turn_end(self, epoch: int) -> None:
        """Note that the turn with this epoch has ended: it says nothing of interest."""
        self._received = max(self._received, (epoch, _END))

    def note_progress(self, change: Change) -> bool:
        """Note a ``partial`` or ``turn``; tell whether it is new and of interest."""
        if change.turn is None or change.turn_position is None:
            return False
        place = (change.turn.epoch, change.turn_position)
        if place <= self._received:
            return False
        self._received = place
        return change.event is None or change.event.id not in self._stored


class HeardTurns:
    """Record of what was received of the turns of many sessions since they began.

    Of a turn that had begun before, only its status is of interest: the beginning of
    what it says is missing.
    """

    def __init__(self) -> None:
        self._running: dict[SessionKey, tuple[int, HeardTurn]] = {}
        """The epoch of each turn that runs, and what was received of it."""

    def note_progress(self, change: Change) -> bool:
        """Note a change, and tell whether it is new and still of interest."""
        key = change.session_key
        if key is None:
            return True
        epoch, heard = self._running.get(key, (0, None))
        if change.kind == "appended" and change.event and heard:
            heard.note_stored([change.event.id])
        if change.turn is None:
            return True
        if change.kind == "partial":
            return heard is not None and heard.note_progress(change)
        status = change.turn.status
        if change.turn.epoch > epoch and status == "running":
            self._running[key] = (change.turn.epoch, HeardTurn())
        elif change.turn.epoch == epoch and status not in {"running", "stopping"}:
            del self._running[key]
        return True
