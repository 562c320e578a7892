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
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Final, NamedTuple, TypeAlias

from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send
from typing_extensions import override

from mongo_session_service.changes.change import Change
from mongo_session_service.errors import (
    HistoryLostError,
    MongoSessionServiceError,
    SlowSubscriberError,
    StorageUnavailableError,
)
from mongo_session_service.feed.subscription import SessionSubscription, Subscription
from mongo_session_service.http.refusals import RETRY_SECONDS, SEE_LOG, UNAVAILABLE
from mongo_session_service.model.limits import Limits
from mongo_session_service.model.records import SessionKey

try:
    from sse_starlette.sse import EventSourceResponse, SendTimeoutError
except ImportError as error:
    raise ImportError(
        "Changes over HTTP need sse-starlette 3 or later:"
        " pip install 'mongo-session-service[sse]'"
    ) from error

logger = logging.getLogger(__name__)

PIECE: Final = 131_072
"""Characters that are sent at once: a server holds so many for a client, or twice, and
a client that does not take them in time is cut off."""

RECONNECT_SECONDS: Final = 2
"""Seconds after which a client should reconnect."""

_MUCH_LATER: Final = 60
"""Seconds after which it should if MongoDB refuses."""

_REASONS: Final[dict[type[Exception], tuple[int, str]]] = {
    SlowSubscriberError: (RECONNECT_SECONDS, "This client read too slowly."),
    HistoryLostError: (
        *(RECONNECT_SECONDS, "Changes were missed and cannot be recovered."),
    ),
    StorageUnavailableError: (RETRY_SECONDS, UNAVAILABLE),
}
"""Seconds until a client should reconnect, and why its stream ended."""

_FAREWELL: Final = 1.0
"""Seconds for a client to read the end of its stream when the server is shut down."""

_NEVER: Final = 10**9
"""Seconds between comments of sse-starlette, which would cut into what is sent."""

_END: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": False}


class Frame(NamedTuple):
    """One server-sent event."""

    kind: str
    """Its ``event``; empty in ADK's own streams, which have none."""
    data: str
    id: str | None = None


Frames: TypeAlias = AsyncGenerator[Frame, None]


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


def pieces_of(frame: Frame) -> Iterator[bytes]:
    """Encode a frame, a large one a piece at a time; its text is its readers' own."""
    kind, data, id_ = frame
    named = "" if id_ is None else f"id: {id_}\n"
    begun = f"event: {kind}\n{named}data: " if kind else "data: "
    for at in range(0, len(data) - PIECE + 1, PIECE):
        yield (begun + data[at : at + PIECE]).encode()
        begun = ""
    yield (begun + data[len(data) // PIECE * PIECE :] + "\n\n").encode()


async def content_frames(
    subscription: SessionSubscription, begun: Iterable[Frame]
) -> Frames:
    """Yield what was taken already, and then everything that happens to a session."""
    for frame in begun:
        yield frame
    async for change in subscription:
        is_placed = {change.turn_position, change.revision} != {None}
        yield frame_of(change, subscription.place if is_placed else None)
        del change  # or it would be held until the next one comes


async def outlines(
    subscription: Subscription,
    may_send: Callable[[Change], Awaitable[bool]],
    first: Change | None,
) -> Frames:
    """Everything that happens to several sessions, without events and state."""
    if first is not None:
        yield frame_of(first)
    async for change in subscription:
        if change.kind != "partial" and await may_send(change):
            yield Frame(change.kind, change.outline_text)


class ChangeStream(EventSourceResponse):
    """Sends what its sources have until the first of them ends, or nobody may read it.

    A client that does not take a piece of it in time is cut off.
    """

    media_type = "text/event-stream"

    opening = f"retry: {RECONNECT_SECONDS * 1000}\n\n".encode()
    """Sent at once, after a heartbeat; or nothing."""

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
        is_unread = False
        try:
            await super().__call__(scope, receive, send)
        except* SendTimeoutError:
            is_unread = True
        finally:
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
        if sent := heartbeat + self.opening if self.opening else b"":
            yield sent
        try:
            async with aclosing(self._ready_frames()) as ready:
                async for frame in ready:
                    for piece in pieces_of(frame) if frame else [heartbeat + b"\n"]:
                        await self._recheck_permission()
                        yield (sent := piece)
                    del frame  # or it would be held until the next one comes
        except MongoSessionServiceError as error:
            logger.info("A client's stream ends. %s", error)
            yield self.closing(*_REASONS.get(type(error), (_MUCH_LATER, SEE_LOG)))
        except HTTPException as error:
            if sent[-2:] in {b"\n\n", b""}:  # not in the middle of a frame
                yield self.closing(RECONNECT_SECONDS, str(error.detail))

    def closing(self, seconds: int, reason: str) -> bytes:
        """Encode its last event: why it ends, and the seconds to reconnect."""
        data = json.dumps({"reason": reason})
        return f"retry: {seconds * 1000}\nevent: trouble\ndata: {data}\n\n".encode()

    async def _recheck_permission(self) -> None:
        if (now := time.monotonic()) >= self._permitted_until:
            await self._permit()
            self._permitted_until = now + self._heartbeat

    async def _ready_frames(self) -> AsyncGenerator[Frame | None, None]:
        """Wait for whatever the sources have; None for each heartbeat of silence.

        The next frame of a source is asked for once the one before was sent.
        """
        asked = {asyncio.ensure_future(anext(it, None)): it for it in self._sources}
        try:
            while True:
                done, _ = await asyncio.wait(
                    asked, timeout=self._heartbeat, return_when="FIRST_COMPLETED"
                )
                if not done:
                    yield None
                while done:
                    source = asked.pop(answer := done.pop())
                    if answer.result() is not None:
                        yield answer.result()
                        asked[asyncio.ensure_future(anext(source, None))] = source
                    elif source is self._sources[0]:
                        return
                    del answer  # and what it has sent
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            for source in self._sources:
                await source.aclose()


class AnswerStream(ChangeStream):
    """Server-sent events as ADK's own server sends them, which are ``data`` alone."""

    opening = b""

    @override
    def closing(self, seconds: int, reason: str) -> bytes:
        return f"data: {json.dumps({'error': reason})}\n\n".encode()
