"""Change streams over HTTP: server-sent events of a session, of many, or of both."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Final, NamedTuple, TypeAlias

from google.adk.errors.session_not_found_error import SessionNotFoundError
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from mongo_session_service.changes.change import Change
from mongo_session_service.errors import (
    HistoryLostError,
    MongoSessionServiceError,
    SlowSubscriberError,
    StorageUnavailableError,
)
from mongo_session_service.feed.subscription import SessionSubscription, Subscription
from mongo_session_service.http import problems
from mongo_session_service.http.reading_budget import PIECE, ReadingBudget, Share
from mongo_session_service.model.limits import Limits
from mongo_session_service.storage.cooperative import Pace

try:
    from sse_starlette.sse import EventSourceResponse, SendTimeoutError
except ImportError as error:
    raise ImportError(
        "Changes over HTTP need sse-starlette 3 or later:"
        " pip install 'mongo-session-service[sse]'"
    ) from error

logger = logging.getLogger(__name__)

RECONNECT_SECONDS: Final = 2
"""Seconds after which a client should reconnect."""

_MUCH_LATER: Final = 60
"""Seconds after which it should if MongoDB refuses."""

_FAREWELL: Final = 1.0
"""Seconds for a client to read the end of its stream when the server is shut down."""


_NEVER: Final = 10**9
"""Seconds between comments of sse-starlette, which would cut into what is sent."""

_END: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": False}


class Frame(NamedTuple):
    """One server-sent event."""

    kind: str
    data: str
    id: str | None = None


Frames: TypeAlias = AsyncGenerator[Frame, None]


def pieces_of(frames: list[Frame]) -> Iterator[bytes]:
    """Encode frames: small ones together, large ones a piece at a time.

    Their texts are shared by all their readers.
    """
    begun = ""
    for kind, data, id_ in frames:
        if begun and len(begun) + len(data) > PIECE:
            yield begun.encode()
            begun = ""
        named = "" if id_ is None else f"id: {id_}\n"
        begun += f"event: {kind}\n{named}data: "
        for at in range(0, len(data) - PIECE + 1, PIECE):
            yield (begun + data[at : at + PIECE]).encode()
            begun = ""
        begun += data[len(data) // PIECE * PIECE :] + "\n\n"
    yield begun.encode()


class Outbox:
    """Frames that are ready: what is sent at once, as a server's call costs more."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._size = 0
        self._has_room = asyncio.Event()
        self.is_due = asyncio.Event()
        """Set when there are frames, or a source has ended."""

    async def fill(self, source: Frames) -> None:
        """Hold what a source has until its end; a piece, or one frame beyond that."""
        pace = Pace()
        try:
            async for frame in source:
                self._frames.append(frame)
                self._size += len(frame.data)
                self.is_due.set()
                if self._size >= PIECE:
                    self._has_room.clear()
                    await self._has_room.wait()
                await pace.yield_to_loop()
        finally:
            self.is_due.set()

    def empty(self) -> list[Frame]:
        """Return what is ready, and make room."""
        frames, self._frames, self._size = self._frames, [], 0
        self._has_room.set()
        self.is_due.clear()
        return frames


class Page(Share):
    """Frames of what was read from storage; they count until they are sent."""

    def __init__(self, budget: ReadingBudget) -> None:
        super().__init__(budget)
        self._frames: deque[Frame] = deque()
        self._unsent = 0

    def add(self, frame: Frame) -> None:
        """Add a frame that was made of what was read."""
        self._frames.append(frame)
        self._unsent += sys.getsizeof(frame.data)

    def drain(self) -> Iterator[Frame]:
        """Hand out each frame once the one before is sent."""
        while self._frames:
            self.shrink(self._unsent)
            frame = self._frames.popleft()
            yield frame
            self._unsent -= sys.getsizeof(frame.data)
        self.close()


class StreamPlace(NamedTuple):
    """How far a client has come in a session's stream, as the id of an event says."""

    revision: int
    partial: tuple[int, int] | None = None

    @classmethod
    def of_id(cls, last_event_id: str | None) -> StreamPlace | None:
        """Read an id; None for none."""
        if last_event_id is None:
            return None
        revision, *partial = map(int, last_event_id.split("-"))
        return cls(revision, (partial[0], partial[1]) if partial else None)


class Content:
    """Everything that happens to one session."""

    def __init__(
        self,
        subscription: SessionSubscription,
        after_partial: tuple[int, int] | None,
        page: Page,
    ) -> None:
        self._subscription = subscription
        self._after_partial = after_partial
        self._page = page

    async def begin(self, first: Change | None) -> None:
        """Begin with a change that has no id: a client could not resume from it."""
        if first is not None:
            self._page.add(Frame(first.kind, first.json_text))
        if self._subscription.has_page:
            await self._read_page()

    async def frames(self) -> Frames:
        """Read on whenever what was read is sent."""
        while True:
            for frame in self._page.drain():
                yield frame
            if not self._subscription.is_following:
                await self._page.reserve()
            if not await self._read_page():
                return

    async def _read_page(self) -> bool:
        """Wait for a change, and keep of all that was read with it only the text."""
        pace = Pace()
        async for change in self._subscription:
            self._page.add(self._frame_of(change))
            await pace.yield_to_loop()
            if not self._subscription.has_page:
                return True
        return False

    def _frame_of(self, change: Change) -> Frame:
        """Make its frame, with the id by which a client resumes after it, if it can."""
        if change.turn is not None and change.turn_position is not None:
            self._after_partial = (change.turn.epoch, change.turn_position)
        elif change.revision is None:
            return Frame(change.kind, change.json_text)
        place = (self._subscription.last_revision, *(self._after_partial or ()))
        return Frame(change.kind, change.json_text, "-".join(map(str, place)))


async def earlier_events(pages: AsyncGenerator[list[Change]], page: Page) -> Frames:
    """Read the events of a session before a revision, the latest first."""
    with suppress(SessionNotFoundError):  # which its content tells
        while await _read_earlier(pages, page):
            for frame in page.drain():
                yield frame
        page.close()
        yield Frame("beginning", "{}")


async def _read_earlier(pages: AsyncGenerator[list[Change]], page: Page) -> bool:
    pace = Pace()
    await page.reserve()
    async for changes in pages:
        for each in changes:
            page.add(Frame("earlier", each.json_text))
            await pace.yield_to_loop()
        return True
    return False


async def outlines(
    subscription: Subscription,
    is_shown: Callable[[Change], Awaitable[bool]],
    first: Change | None,
) -> Frames:
    """Tell what happens to several sessions, without events and state."""
    if first is not None:
        yield Frame(first.kind, first.json_text)
    async for change in subscription:
        if change.kind != "partial" and await is_shown(change):
            yield Frame(change.kind, change.outline_text)


class ChangeStream(EventSourceResponse):
    """Sends what its sources have until the first of them ends, or nobody may read it.

    A reader that takes nothing for ``http_unread_seconds`` is cut off.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        sources: Sequence[Frames],
        opened: AsyncExitStack,
        permit: Callable[[], Awaitable[None]],
        limits: Limits,
        actions: Sequence[str] = (),
    ) -> None:
        """Ask for the permission again at each heartbeat; it raises if there is none.

        Heartbeats are comments, sent whenever nothing else was for so many seconds.
        What was opened is closed at the end. Headers name the actions that the reader
        may do.
        """
        self._sources = sources
        self._opened = opened
        self._permit = permit
        self._heartbeat = limits.http_heartbeat_seconds
        self._permitted_until = time.monotonic() + self._heartbeat
        super().__init__(
            self._pieces(),
            headers={"Permitted-Actions": ", ".join(actions)} if actions else {},
            ping=_NEVER,
            send_timeout=limits.http_unread_seconds,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        try:
            await super().__call__(scope, receive, send)
            if self.active:  # the server is shut down: it would log an error
                # ASGI lets servers raise one as well if the client has left.
                with suppress(OSError):
                    async with asyncio.timeout(_FAREWELL):
                        await send(_END)
        except* SendTimeoutError:
            logger.info("A client's stream ends. It did not read.")
            await self._opened.aclose()
            # No server lets an app close a connection: the little that the client has
            # not read waits for it, without a limit, as any answer does.
            await send(_END)
        finally:
            # The generator does not run if the client left before the first piece.
            await self._opened.aclose()

    async def _pieces(self) -> AsyncIterator[bytes]:
        heartbeat = f": heartbeat {self._heartbeat:g}\n".encode()
        sent = heartbeat + f"retry: {RECONNECT_SECONDS * 1000}\n\n".encode()
        yield sent
        try:
            async with aclosing(self._ready_frames()) as ready:
                async for frames in ready:
                    for piece in pieces_of(frames) if frames else [heartbeat + b"\n"]:
                        await self._recheck_permission()
                        sent = piece
                        yield sent
        except MongoSessionServiceError as error:
            logger.info("A client's stream ends. %s", error)
            yield trouble(*reason_of(error))
        except HTTPException as error:
            if sent.endswith(b"\n\n"):  # not in the middle of a frame
                yield trouble(RECONNECT_SECONDS, str(error.detail))

    async def _recheck_permission(self) -> None:
        if (now := time.monotonic()) >= self._permitted_until:
            await self._permit()
            self._permitted_until = now + self._heartbeat

    async def _ready_frames(self) -> AsyncGenerator[list[Frame], None]:
        """Wait for whatever the sources have; nothing for each heartbeat of silence."""
        outbox = Outbox()
        filling = [asyncio.create_task(outbox.fill(it)) for it in self._sources]
        try:
            while True:
                try:
                    async with asyncio.timeout(self._heartbeat):
                        await outbox.is_due.wait()
                except TimeoutError:
                    yield []
                    continue
                ended = [each for each in filling if each.done()]
                if frames := outbox.empty():
                    yield frames
                for each in ended:
                    each.result()
                if filling[0] in ended:
                    return
        finally:
            for each in filling:
                each.cancel()
            await asyncio.gather(*filling, return_exceptions=True)


def trouble(seconds: int, reason: str) -> bytes:
    """Tell a client why its stream ends, and when to come back."""
    data = json.dumps({"reason": reason})
    return f"retry: {seconds * 1000}\nevent: trouble\ndata: {data}\n\n".encode()


def reason_of(error: MongoSessionServiceError) -> tuple[int, str]:
    """Return the seconds until a client should reconnect, and why its stream ended."""
    match error:
        case SlowSubscriberError():
            return RECONNECT_SECONDS, "This client read too slowly."
        case HistoryLostError():
            return RECONNECT_SECONDS, "Changes were missed and cannot be recovered."
        case StorageUnavailableError():
            return problems.RETRY_SECONDS, problems.UNAVAILABLE
        case _:
            return _MUCH_LATER, problems.SEE_LOG
