"""What a move is to do, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from .batches import Policy


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
