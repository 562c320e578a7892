"""Reads of one point in time, which may be before a collection was created."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

Result = TypeVar("Result")

SNAPSHOT: Final = ReadConcern("snapshot")

_UNAVAILABLE: Final = 246
_PAUSES: Final = (0.01, 0.05, 0.2)
"""Seconds to wait for a snapshot that has a collection just created."""


async def once_created(read: Callable[[], Awaitable[Result]]) -> Result:
    """What is read of a snapshot that is late enough for all that it is read of.

    It may be of a collection, or by an index, that was created just now.
    """
    for pause in _PAUSES:
        try:
            return await read()
        except OperationFailure as error:
            if error.code != _UNAVAILABLE:
                raise
        await asyncio.sleep(pause)
    return await read()
