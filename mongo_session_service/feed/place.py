"""Place: where a reader of a session stands, so that a later one goes on there."""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple, Self

from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.validation import check_revision

FORM: Final = r"([0-9]{1,18})(?:-([0-9]{1,18})-([0-9]{1,18}))?-([0-9a-f]{16})"
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
    def of_argument(cls, name: str, given: int | str | None) -> Self:
        """Read an argument: a revision, or what ``text`` has made."""
        if not isinstance(given, str):
            check_revision(name, given)
            return cls(given)
        if (found := re.fullmatch(FORM, given)) is None:
            raise InvalidInputError(f"{name} must be a number, or a place.")
        revision, epoch, position, creation = found.groups()
        partial = None if epoch is None else (int(epoch), int(position))
        (created,) = struct.unpack(">d", bytes.fromhex(creation))
        return cls(int(revision), partial, created)

    @property
    def text(self) -> str:
        creation = struct.pack(">d", self.create_time).hex()
        return "-".join(map(str, (self.revision, *(self.partial or ()), creation)))
