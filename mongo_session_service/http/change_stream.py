"""Change streams over HTTP: server-sent events of a session, of many, or of both."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, nullcontext, suppress
from functools import partial
from itertools import chain
from sys import getsizeof
from typing import Final, NamedTuple, TypeAlias

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
from mongo_session_service.http.readers import Reader, UnreadError
from mongo_session_service.http.refusals import RETRY_SECONDS, SEE_LOG, UNAVAILABLE
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage.tasks import Pace

try:
    from sse_starlette.sse import EventSourceResponse
except ImportError as error:
    raise ImportError(
        "Changes over HTTP need sse-starlette 3 or later:"
        " pip install 'mongo-session-service[sse]'"
    ) from error

logger = logging.getLogger(__name__)

PIECE: Final = 32_768
"""Characters that are sent at once: a server holds so many for a client, or twice."""

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


Frames: TypeAlias = AsyncGenerator[list[Frame], None]


def frame_of(change: Change, place: str | None = None) -> Frame:
    """Make the event of a change with all its content."""
    return Frame(change.kind, change.json_text, place)


class OneContent:
    """The session whose content a stream of several has, beside outlines of others."""

    def __init__(self, key: SessionKey | None) -> None:
        self._key = key
        self.ended = asyncio.Event()
        """Set once the session was deleted."""
        self._is_anew = False

    async def until_end(self, frames: Frames) -> Frames:
        """Yield its frames, and note their end."""
        async with aclosing(frames):
            async for each in frames:
                yield each
        self.ended.set()

    async def lacks(self, key: SessionKey, change: Change) -> bool:
        """Whether a change is another session's, or one's made anew after its end."""
        if key == self._key and change.kind == "created":
            await self.ended.wait()
            self._is_anew = True
        return key != self._key or self._is_anew


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
    """A queue of frames: those that are ready are sent in one call of the server."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[list[Frame]] = asyncio.Queue()
        self._untaken = 0

    async def collect(self, source: Frames) -> None:
        """Queue the frames of a source; wait whenever ``PIECE`` bytes are unsent."""
        pace = Pace()
        try:
            async for frames in source:
                self._queue.put_nowait(frames)
                self._untaken += sum(len(each.data) for each in frames)
                if self._untaken >= PIECE:
                    await self._queue.join()
                await pace.yield_to_loop()
        finally:
            self._queue.put_nowait([])

    async def take(self) -> list[list[Frame]]:
        """Wait for frames, and take all; an empty list marks the end of a source."""
        taken = [await self._queue.get()]
        taken += [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        self._untaken = 0
        return taken

    def note_sent(self, taken: list[list[Frame]]) -> None:
        """Free the frames that were sent, and let their sources go on."""
        for frames in taken:
            frames.clear()
            self._queue.task_done()


class SessionFrames:
    """Everything that happens to one session, a page of its log at a time.

    A page is held for its reader until it is sent; changes that follow share their text
    with other readers.
    """

    def __init__(self, subscription: SessionSubscription, reader: Reader) -> None:
        self._subscription = subscription
        self._reader = reader

    async def take(self) -> list[Frame]:
        """Wait for a page, or for what happens next; nothing at the end."""
        subscription, pace = self._subscription, Pace()
        is_page = not subscription.is_following
        frames = []
        async for change in subscription:
            is_placed = {change.turn_position, change.revision} != {None}
            id_ = subscription.place if is_placed else None
            frames.append(Frame(change.kind, change.json_text, id_))
            await pace.yield_to_loop()
            if not subscription.has_page:
                break
        if is_page:
            await self._reader.hold(sum(getsizeof(each.data) for each in frames))
        return frames

    async def follow(self, begun: list[Frame]) -> Frames:
        """Yield what was taken already, and whatever follows."""
        if begun:
            yield begun
        while True:
            self._reader.held = 0
            is_page = not self._subscription.is_following
            async with self._reader.at_work() if is_page else nullcontext():
                frames = await self.take()
            if not frames:
                return
            yield frames


async def outlines(
    subscription: Subscription,
    is_shown: Callable[[Change], Awaitable[bool]],
    first: Change | None,
) -> Frames:
    """Everything that happens to several sessions, without events and state."""
    if first is not None:
        yield [Frame(first.kind, first.json_text)]
    async for change in subscription:
        if change.kind != "partial" and await is_shown(change):
            yield [Frame(change.kind, change.outline_text)]


class ChangeStream(EventSourceResponse):
    """Sends what its sources have until the first of them ends, or nobody may read it.

    A reader that takes too little is cut off: see :class:`Reader`.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        sources: Sequence[Frames],
        opened: AsyncExitStack,
        permit: Callable[[], Awaitable[None]],
        reader: Reader,
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
        self._reader = reader
        self._heartbeat = reader.limits.http_heartbeat_seconds
        self._permitted_until = time.monotonic() + self._heartbeat
        super().__init__(
            self._pieces(),
            headers={"Permitted-Actions": ", ".join(actions)} if actions else {},
            ping=_NEVER,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_unread = False
        try:
            in_time = partial(self._reader.send, send)
            await super().__call__(scope, receive, in_time)
        except* UnreadError:
            is_unread = True
        finally:
            self._reader.held = 0
            # The generator does not run if the client left before the first piece.
            await self._opened.aclose()
        if is_unread:
            logger.info("A client's stream ends. It did not read.")
            # No server lets an app close a connection: the little that the client has
            # not read waits for it, without a limit, as any answer does.
            await send(_END)
        elif self.active:  # the server is shut down: it would log an error
            # ASGI lets servers raise one as well if the client has left.
            with suppress(OSError):
                async with asyncio.timeout(_FAREWELL):
                    await send(_END)

    async def _pieces(self) -> AsyncIterator[bytes]:
        heartbeat = f": heartbeat {self._heartbeat:g}\n".encode()
        sent = heartbeat + f"retry: {RECONNECT_SECONDS * 1000}\n\n".encode()
        yield sent
        try:
            async with aclosing(self._ready_frames()) as ready:
                async for frames in ready:
                    for piece in pieces_of(frames) if frames else [heartbeat + b"\n"]:
                        await self._recheck_permission()
                        yield (sent := piece)
        except MongoSessionServiceError as error:
            logger.info("A client's stream ends. %s", error)
            yield closing_error_event(*reason_of(error))
        except HTTPException as error:
            if sent.endswith(b"\n\n"):  # not in the middle of a frame
                yield closing_error_event(RECONNECT_SECONDS, str(error.detail))

    async def _recheck_permission(self) -> None:
        if (now := time.monotonic()) >= self._permitted_until:
            await self._permit()
            self._permitted_until = now + self._heartbeat

    async def _ready_frames(self) -> AsyncGenerator[list[Frame], None]:
        """Wait for whatever the sources have; nothing for each heartbeat of silence."""
        outbox = Outbox()
        collecting = [
            asyncio.create_task(outbox.collect(each)) for each in self._sources
        ]
        try:
            while True:
                try:
                    async with asyncio.timeout(self._heartbeat):
                        taken = await outbox.take()
                except TimeoutError:
                    yield []
                    continue
                ended = [each for each in collecting if each.done()]
                if frames := list(chain(*taken)):
                    yield frames
                frames.clear()
                outbox.note_sent(taken)
                for each in ended:
                    each.result()
                if collecting[0] in ended:
                    return
        finally:
            for each in collecting:
                each.cancel()
            await asyncio.gather(*collecting, return_exceptions=True)
            for source in self._sources:
                await source.aclose()  # it may hold a page that was not sent


def closing_error_event(seconds: int, reason: str) -> bytes:
    """Encode the last event of a stream: why it ends, and the seconds to reconnect."""
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
            return RETRY_SECONDS, UNAVAILABLE
        case _:
            return _MUCH_LATER, SEE_LOG
