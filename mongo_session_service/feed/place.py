"""Place: where a reader of a session stands, so that a later one goes on there."""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple, Self

from mongo_session_service.errors import InvalidInputError

_FORM: Final = r"([0-9]{1,18})(?:-([0-9]{1,18})-([0-9]{1,18}))?-([0-9a-f]{16})"
"""A revision; if there is one the epoch and position of a partial; which session."""


class Place(NamedTuple):
    """A revision, and a partial, after which a reader goes on."""

    revision: int | None
    partial: tuple[int, int] | None = None
    """The epoch and the position of the last one that was received."""
    create_time: float | None = None
    """That of the session that was read: another may have its id by now. None if it is
    not known."""

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Read what ``text`` has made."""
        if (found := re.fullmatch(_FORM, text)) is None:
            raise InvalidInputError("after_revision must be a number, or a place.")
        revision, epoch, position, creation = found.groups()
        partial = None if epoch is None else (int(epoch), int(position))
        (created,) = struct.unpack(">d", bytes.fromhex(creation))
        return cls(int(revision), partial, created)

    @property
    def text(self) -> str:
        creation = struct.pack(">d", self.create_time).hex()
        return "-".join(map(str, (self.revision, *(self.partial or ()), creation)))
