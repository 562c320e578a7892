"""Reading budget: how much a service holds at once of what clients over HTTP read.

A page of a log is read while its share is reserved, and encoded at once; then only its
text is held, until its client has it. Others wait for their share in order.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Iterable
from typing import Final

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from typing_extensions import override

from mongo_session_service.http import problems

logger = logging.getLogger(__name__)

PIECE: Final = 32_768
"""Characters that are sent at once: a server holds so many for a client, or twice."""


class ReadingBudget:
    """A number of bytes that is shared by all readers of an event loop."""

    def __init__(self, total: int, page: int) -> None:
        """Begin with all of it; so much counts for a page that is being read."""
        self._free, self._page = total, min(page, total)
        self._queue: deque[Reservation] = deque()

    async def reserve_page(self) -> Reservation:
        """Wait for a share with which a page may be read."""
        asked = Reservation(self, self._page)
        self._queue.append(asked)
        self.grant(0)
        try:
            await asked.granted
        except asyncio.CancelledError:
            asked.release()
            raise
        return asked

    def grant(self, returned: int) -> None:
        """Give what was returned to those who wait, the first of them first."""
        self._free += returned
        while self._queue and self._queue[0].size <= self._free:
            first = self._queue.popleft()
            if not first.granted.done():
                self._free -= first.size
                first.granted.set_result(None)


class Reservation:
    """A share of the budget."""

    def __init__(self, budget: ReadingBudget, size: int) -> None:
        self._budget = budget
        self.size = size
        self.granted: asyncio.Future[None] = asyncio.Future()

    def shrink(self, texts: Iterable[str]) -> None:
        """Keep only what texts take up."""
        # A cancelled one has nothing to return.
        if self.granted.done() and not self.granted.cancelled():
            kept = min(self.size, sum(map(sys.getsizeof, texts)))
            self._budget.grant(self.size - kept)
            self.size = kept

    def release(self) -> None:
        """Return all of it."""
        self.shrink(())


class HeldText(Response):
    """An answer that is held until its client has read it, or takes nothing of it."""

    media_type = "application/json"

    def __init__(
        self, text: str, seconds: float, held: Reservation | None = None
    ) -> None:
        """Wait for so long whenever the client takes nothing."""
        super().__init__(None, headers=problems.NO_STORE)
        self._text = text
        self._held = held
        self._seconds = seconds
        if held is not None:
            held.shrink([text])

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it in pieces: a server holds all that it is given."""
        del self.headers["content-length"]
        start = {"type": "http.response.start", "status": self.status_code}
        body: Message = {"type": "http.response.body"}
        try:
            await send({**start, "headers": self.raw_headers})
            for at in range(0, len(self._text), PIECE):
                piece = self._text[at : at + PIECE].encode()
                async with asyncio.timeout(self._seconds):
                    await send({**body, "body": piece, "more_body": True})
        except TimeoutError:
            logger.info("A client's answer ends. It did not read.")
        finally:
            self._text = ""
            if self._held is not None:
                self._held.release()
        await send({**body, "body": b""})
