"""Source limits: what a value may take in memory, judged before it is built.

A short line that is compressed, or a column of JSON, can take thirty times its length
as objects, and ten times that as models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from mongo_session_service.transfer.sources.base import UnreadableError

MAX_MEMORY: Final = 160_000_000
"""Bytes, about, that one value may take: documents have 16 MB at most."""

MAX_PARTS: Final = 40_000
"""Parts of one event that become models, or errors, of a kilobyte or more each."""

_SMALL: Final = 1_000_000
"""Bytes of JSON that cannot take too much."""

_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{,]', re.DOTALL)
_WIDE: Final = re.compile(rb"[\xf0-\xf4]|\\u[dD][89abAB]")
_QUOTE: Final = ord('"')
_TEXT: Final = 56
_PARTS: Final[Mapping[int, int]] = {ord("{"): 120, ord("["): 64, ord(","): 40}
"""Bytes that parts of JSON take, a comma for the value beside it."""

_FREE: Final = frozenset(
    (
        *("state_delta", "stateDelta", "custom_metadata", "customMetadata"),
        *("agent_state", "agentState", "args", "response", "output"),
    )
)
"""Fields of events whose content stays as it is, however much there is."""


def check_json(text: bytes) -> None:
    """Refuse JSON whose value would take too much memory.

    Raises:
        UnreadableError: it would.
    """
    if len(text) <= _SMALL:
        return
    # One wide character makes each character of its text as wide.
    width = 4 if _WIDE.search(text) else 2
    if text.isascii() and b"\\u" not in text:
        width = 1
    # To be stored, values are copied; so are those with tags, to be read.
    copies = 3 if b'"%' in text else 2
    left = MAX_MEMORY - len(text) * (1 + width)
    for token in _TOKEN.finditer(text):
        start, end = token.span()
        first = text[start]
        if first == _QUOTE:
            left -= _TEXT + (end - start) * width
        else:
            left -= _PARTS[first] * copies
        if left < 0:
            raise UnreadableError("it would take too much memory")


def check_models(fields: dict[str, Any]) -> None:
    """Refuse fields of an event that would become too many models.

    Raises:
        UnreadableError: they would.
    """
    left = MAX_PARTS
    waiting: list[Any] = [fields]
    for found in waiting:
        left -= len(found)
        if left < 0:
            raise UnreadableError("it consists of too many parts")
        parts = found
        if isinstance(found, dict):
            parts = [each for name, each in found.items() if name not in _FREE]
        waiting += [each for each in parts if isinstance(each, dict | list)]
