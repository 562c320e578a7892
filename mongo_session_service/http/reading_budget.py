"""Reading budget: how much a service holds at once of what clients over HTTP read.

A page of a log is read while its share is reserved, and encoded at once; then only its
text is held, until its client has it. Others wait for their share in order.
"""

from __future__ import annotations

import asyncio
import logging
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
        self.page = min(page, total)
        self._free = total
        self._queue = asyncio.Lock()
        self._returned = asyncio.Event()

    async def reserve_page(self) -> None:
        """Wait until a page may be read, behind those who asked before."""
        async with self._queue:
            while self._free < self.page:
                self._returned.clear()
                await self._returned.wait()
            self._free -= self.page

    def give_back(self, size: int) -> None:
        """Let others have it."""
        self._free += size
        self._returned.set()


class Share:
    """What one reader holds of a budget; nothing at first."""

    def __init__(self, budget: ReadingBudget) -> None:
        self._budget = budget
        self._size = 0

    async def reserve(self) -> None:
        """Wait until a page may be read."""
        self.close()
        await self._budget.reserve_page()
        self._size = self._budget.page

    def shrink(self, size: int) -> None:
        """Keep no more than what was read takes up."""
        kept = min(self._size, size)
        self._budget.give_back(self._size - kept)
        self._size = kept

    def close(self) -> None:
        """Give all of it back."""
        self.shrink(0)


class HeldText(Response):
    """An answer that is held until its client has read it, or takes nothing of it."""

    media_type = "application/json"

    def __init__(self, text: str, seconds: float, share: Share | None = None) -> None:
        """Wait for so long whenever the client takes nothing."""
        super().__init__(None, headers=problems.NO_STORE)
        self._text = text
        self._share = share
        self._seconds = seconds

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
            if self._share is not None:
                self._share.close()
        await send({**body, "body": b""})
