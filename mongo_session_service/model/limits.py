"""Limits: the sizes, counts and intervals that one service works with.

A service takes them as the private argument ``_limits``, so that a test may make a page
of two events or a lease of a tenth of a second. Nobody else sets them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one service may hold at once, and how long it waits."""


DEFAULT = Limits()
