"""Wording of numbers and names in messages: plurals and articles.

It imports nothing, because the command line answers ``--help`` before ADK is imported.
"""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """How many there are: ``1 event``, ``1,000 events``."""
    return f"{number:,} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """What so many of something are called."""
    return noun if number == 1 else f"{noun}s"


def indefinite(name: str) -> str:
    """A type's name with its article; ``U`` is spoken as in UUID."""
    return f"{'an' if name[:1] in set('AEIOaeio') else 'a'} {name}"
