"""Calls: what the feed says to those who wait for the turns of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from typing_extensions import override

from mongo_session_service.changes.decoder import Called
from mongo_session_service.changes.routing import CALLS
from mongo_session_service.feed.subscription import Subscription

if TYPE_CHECKING:
    from mongo_session_service.feed.feed import Feed

_MAX_BYTES: Final = 1_000_000


class Calls(Subscription):
    """The calls to all who wait, in whichever process, from when it was opened on."""

    def __init__(self, feed: Feed) -> None:
        super().__init__(feed, CALLS, _MAX_BYTES)

    @override
    async def _begin(self) -> None:
        await self._feed.attach(self)

    async def next(self, deadline: float) -> Called | None:
        """The next call; None if some may have been missed.

        Args:
            deadline: When to give up waiting, on the event loop's clock.

        Raises:
            StopAsyncIteration: it was closed.
            TimeoutError: there was none until the deadline.
            MongoSessionServiceError: the feed has failed.
        """
        return (await self._next_notification(deadline)).call
