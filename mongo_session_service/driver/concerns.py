"""Which of a client's read and write concerns are kept, and which cannot be."""

from __future__ import annotations

import logging
from typing import Any, Final

from pymongo import WriteConcern

logger = logging.getLogger(__name__)

MAJORITY: Final = WriteConcern("majority")
_JOURNALED: Final = WriteConcern("majority", j=True)


def check(client: Any) -> None:
    """Tell what a client asks for and cannot have."""
    if client.read_concern.level == "linearizable":
        logger.warning(
            "The client's read concern (linearizable) is not used: sessions are read"
            " from several collections at one time, of what a majority has."
        )
    asked = client.write_concern.document
    unkept = [
        f"{option}={value}"
        for option, value in asked.items()
        if (option, value) not in {("w", "majority"), ("j", True)}
    ]
    if unkept:
        logger.warning(
            "The client's write concern (%s) is not used: what is stored is waited for"
            " until a majority has it, without which it could be lost again.",
            ", ".join(unkept),
        )


def write_concern(client: Any) -> WriteConcern:
    """How everything is written through a client."""
    return _JOURNALED if client.write_concern.document.get("j") else MAJORITY
