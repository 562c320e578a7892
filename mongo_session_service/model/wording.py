"""Wording of numbers and names in messages, and JSON that harms no terminal.

It imports little, because the command line answers ``--help`` before ADK is imported.
"""

from __future__ import annotations

import re
from typing import Final

_UNSAFE_IN_JSON: Final = re.compile(
    r"[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls of terminals, what reorders or breaks lines, and halves of characters."""


def counted(number: int, noun: str) -> str:
    """Count things in words: ``1 event``, ``1,000 events``."""
    return f"{number:,} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


def indefinite(name: str) -> str:
    """Put the article before a type's name; ``U`` is spoken as in UUID."""
    return f"{'an' if name[:1] in set('AEIOaeio') else 'a'} {name}"


def json_line(json_text: str) -> str:
    """Escape control characters in JSON, without changing its meaning."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json_text)


def duration_text(seconds: float | None) -> str:
    """Round a duration to one unit; a dash for None."""
    if seconds is None:
        return "-"
    units = (("days", 86400), ("h", 3600), ("min", 60), ("s", 1))
    unit, length = next((u, n) for u, n in units if n == 1 or seconds >= 2 * n)
    return f"{max(0.0, seconds) / length:.0f} {unit}"
