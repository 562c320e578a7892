"""What sources have in common: being opened and closed, and reading in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from itertools import islice
from types import TracebackType
from typing import Final, Self, TypeVar

from mongo_session_service.transfer.items import Selection, Totals

Element = TypeVar("Element")

STATE_TOGETHER: Final = 4_000_000
"""Characters of state read at once, beyond which a page of sessions ends early."""

_TOGETHER: Final = 200
"""Elements drawn per thread hop: enough to hide its cost, few enough to be flat."""


class Opened:
    """A source that may have something to open and close."""

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _open(self) -> None:
        """Nothing to open."""

    async def _close(self) -> None:
        """Nothing to close."""

    async def totals(self, selection: Selection) -> Totals | None:  # noqa: ARG002
        """Not known before it is read."""
        return None


async def drawn(elements: Iterable[Element]) -> AsyncGenerator[Element]:
    """The elements of an iterator that blocks, drawn from it in threads."""
    iterator = iter(elements)
    while some := await asyncio.to_thread(lambda: list(islice(iterator, _TOGETHER))):
        for each in some:
            yield each
