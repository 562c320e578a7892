"""Change streams over HTTP: server-sent events of a session, of many, or of both."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Final, NamedTuple, TypeAlias, cast

from google.adk.platform import time
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from mongo_session_service.changes.change import Change
from mongo_session_service.driver.slices import Pace
from mongo_session_service.errors import (
    HistoryLostError,
    InvalidInputError,
    MongoSessionServiceError,
    SlowSubscriberError,
    StorageUnavailableError,
    TrimmedError,
)
from mongo_session_service.feed.subscription import SessionSubscription, Subscription
from mongo_session_service.http import problems
from mongo_session_service.http.reading_budget import PIECE, ReadingBudget, Reservation
from mongo_session_service.http.shapes import StreamStart
from mongo_session_service.model.limits import Limits
from mongo_session_service.model.records import SessionKey
from mongo_session_service.service import MongoSessionService, backend_of

try:
    from sse_starlette.sse import EventSourceResponse
except ImportError as error:
    raise ImportError(
        "Changes over HTTP need sse-starlette 3 or later:"
        " pip install 'mongo-session-service[sse]'"
    ) from error

logger = logging.getLogger(__name__)

RETRY_SECONDS: Final = 2
"""Seconds after which a client should reconnect."""

_MUCH_LATER: Final = 60
"""Seconds after which it should if MongoDB refuses."""

_FAREWELL: Final = 1.0
"""Seconds for a client to read the end of its stream when the server is shut down."""


_NEVER: Final = 10**9
"""Seconds between comments of sse-starlette, which would cut into what is sent."""

_EVENT_ID: Final = re.compile(r"[0-9]{1,18}(-[0-9]{1,18}-[0-9]{1,18})?", re.ASCII)
"""A revision, and if there is one the place of a partial: its turn and its position."""

_END: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": False}


class Frame(NamedTuple):
    """One server-sent event."""

    kind: str
    data: str
    id: str | None = None

    def pieces(self) -> Iterator[bytes]:
        """Encode it a piece at a time; its text is shared by all its readers."""
        named = "" if self.id is None else f"id: {self.id}\n"
        begin = f"event: {self.kind}\n{named}data: "
        if len(self.data) < PIECE:
            yield f"{begin}{self.data}\n\n".encode()
            return
        yield begin.encode()
        for at in range(0, len(self.data), PIECE):
            yield self.data[at : at + PIECE].encode()
        yield b"\n\n"


def pieces_of(frames: list[Frame]) -> Iterator[bytes]:
    """Encode frames: small ones together, large ones a piece at a time."""
    joined = b""
    for frame in frames:
        for piece in frame.pieces():
            if joined and len(joined) + len(piece) > PIECE:
                yield joined
                joined = b""
            joined += piece
    yield joined


class Outbox:
    """Frames that are ready: what is sent at once, as a server's call costs more."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._size = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.is_due = asyncio.Event()
        """Set when there are frames, or a source has ended."""

    async def fill(self, source: Source) -> None:
        """Hold what a source has, a piece at most, or one frame; until its end."""
        pace = Pace()
        try:
            while (frame := await source.next_frame()) is not None:
                await self._has_room.wait()
                self._frames.append(frame)
                self._size += len(frame.data)
                if self._size >= PIECE:
                    self._has_room.clear()
                self.is_due.set()
                await pace.keep()
        finally:
            self.is_due.set()

    def empty(self) -> list[Frame]:
        """Return what is ready, and make room."""
        frames, self._frames, self._size = self._frames, [], 0
        self._has_room.set()
        self.is_due.clear()
        return frames


class Content:
    """Everything that happens to one session."""

    def __init__(
        self, subscription: SessionSubscription, start: Start, budget: ReadingBudget
    ) -> None:
        self._subscription = subscription
        self._after_partial = start.after_partial
        self._budget = budget
        self._held: Reservation | None = None
        self._page: deque[Frame] = deque()
        """What was read of the session's history and not sent."""

    async def begin(self, held: Reservation, first: Change | None) -> None:
        """Begin with a change that has no id: a client could not resume from it."""
        self._held = held
        if first is not None:
            self._page.append(Frame(first.kind, first.json_text))
        await self._encode_page()

    async def next_frame(self) -> Frame | None:
        """Wait for what is to be sent next; None at the end."""
        if self._held is not None:
            self._held.shrink(each.data for each in self._page)
        if self._page:
            return self._page.popleft()
        if not self._subscription.is_following:
            self._held = await self._budget.reserve_page()
        async for change in self._subscription:
            self._page.append(self._frame_of(change))
            await self._encode_page()
            return self._page.popleft()
        return None

    async def _encode_page(self) -> None:
        """Keep of what was read from storage only the text."""
        pace = Pace()
        while self._subscription.has_page:
            change = await anext(self._subscription, None)
            if change is None:
                break
            self._page.append(self._frame_of(change))
            await pace.keep()
        if self._held is not None:
            self._held.shrink(each.data for each in self._page)

    def close(self) -> None:
        """End it at once."""
        self._subscription.close()
        self._page.clear()
        if self._held is not None:
            self._held.release()

    def _frame_of(self, change: Change) -> Frame:
        return Frame(change.kind, change.json_text, self._id_of(change))

    def _id_of(self, change: Change) -> str | None:
        """The id by which a client resumes after a change, if it can."""
        if change.turn is not None and change.turn_position is not None:
            self._after_partial = (change.turn.epoch, change.turn_position)
        elif change.revision is None:
            return None
        place = (self._subscription.last_revision, *(self._after_partial or ()))
        return "-".join(map(str, place))


class Outlines:
    """What happens to several sessions, without events and state."""

    def __init__(
        self,
        subscription: Subscription,
        is_shown: Callable[[Change], Awaitable[bool]],
    ) -> None:
        self._subscription = subscription
        self.close = subscription.close
        self._is_shown = is_shown

    async def next_frame(self) -> Frame | None:
        """Wait for what is to be sent next; None at the end."""
        async for change in self._subscription:
            if change.kind != "partial" and await self._is_shown(change):
                return Frame(change.kind, change.outline_text)
        return None


Source: TypeAlias = "Content | DeletedContent | Outlines"


class Start(NamedTuple):
    """Beginning of a session's stream."""

    after_revision: int | None = None
    is_reconnect: bool = False
    with_history: bool = False
    with_partials: bool = False
    after_partial: tuple[int, int] | None = None

    @classmethod
    def of_request(cls, query: StreamStart, last_event_id: str | None) -> Start:
        """Read where a stream is to begin; an id of a former stream goes first.

        Raises:
            InvalidInputError: there are two beginnings, or the id is no id of a stream.
        """
        with_history = query.history is not None
        if with_history and query.after_revision is not None:
            raise InvalidInputError("Give history or after_revision, not both.")
        start = cls(
            query.after_revision,
            with_history=with_history,
            with_partials=query.partials,
        )
        if last_event_id is None:
            return start
        if not _EVENT_ID.fullmatch(last_event_id):
            raise InvalidInputError("Last-Event-ID is not an id of this stream.")
        revision, *place = map(int, last_event_id.split("-"))
        after_partial = (place[0], place[1]) if place and query.partials else None
        return start._replace(
            after_revision=revision, is_reconnect=True, after_partial=after_partial
        )


async def open_content(
    service: MongoSessionService, key: SessionKey, start: Start, budget: ReadingBudget
) -> Content:
    """Open the stream of a session, and read what it begins with.

    A client that comes back from where the session has not come to begins anew.

    Raises:
        InvalidInputError: the session has not reached the revision, or was trimmed.
        SessionNotFoundError: it is not stored.
    """
    after_revision, is_reconnect, with_history, partials, after_partial = start
    size = backend_of(service).limits.http_unread_bytes
    from_start = with_history and after_revision is None
    log_begins = 0
    while True:
        after = log_begins if from_start else after_revision
        try:
            async with AsyncExitStack() as opening:
                held = await budget.reserve_page()
                opening.callback(held.release)
                subscription = service.watch(
                    *key,
                    after_revision=after,
                    max_bytes=size,
                    partials=partials,
                    after_partial=after_partial,
                )
                await opening.enter_async_context(subscription)
                # After the subscription: if the session is recreated in between, the
                # subscription delivers ``deleted``.
                first = await _read_snapshot(service, key) if from_start else None
                content = Content(
                    cast("SessionSubscription", subscription), start, budget
                )
                await content.begin(held, first)
                opening.pop_all()
                return content
        except InvalidInputError as error:
            if isinstance(error, TrimmedError) and from_start:
                log_begins = error.log_begins
            elif is_reconnect:
                after_revision, is_reconnect = None, False
                from_start = with_history
            else:
                raise


async def _read_snapshot(service: MongoSessionService, key: SessionKey) -> Change:
    async with service.watch(*key) as changes:
        return await anext(changes)


class DeletedContent:
    """What is told of a session that was deleted while its reader was away."""

    def __init__(self, key: SessionKey) -> None:
        self._key: SessionKey | None = key

    async def next_frame(self) -> Frame | None:
        """Return the one change, then the end."""
        if self._key is None:
            return None
        gone = Change(kind="deleted", **self._key.id, time=time.get_time())
        self._key = None
        return Frame(gone.kind, gone.json_text)

    def close(self) -> None:
        """Tell nothing more."""
        self._key = None


class ChangeStream(EventSourceResponse):
    """Sends what its sources have until the first of them ends, or nobody may read it.

    A reader that takes nothing for ``http_unread_seconds`` is cut off.
    """

    def __init__(
        self,
        *sources: Source,
        permit: Callable[[], Awaitable[None]],
        limits: Limits,
        headers: dict[str, str],
    ) -> None:
        """Ask for the permission again at each heartbeat; it raises if there is none.

        Heartbeats are comments, sent whenever nothing else was for so many seconds.
        """
        self._sources = sources
        self._permit = permit
        self._heartbeat = limits.http_heartbeat_seconds
        self._unread_seconds = limits.http_unread_seconds
        self._refusal: str | None = None
        self._is_ending = False
        super().__init__(self._bytes(), ping=_NEVER, headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        asking = asyncio.create_task(self._ask_again())
        is_open = False

        async def send_in_time(message: Message) -> None:
            nonlocal is_open
            try:
                async with asyncio.timeout(self._unread_seconds):
                    await send(message)
                    is_open = bool(message.get("more_body", True))
            except TimeoutError:
                self._log_end("It did not read.")
                asking.cancel()
                self._close()
                await self.body_iterator.aclose()  # type: ignore[attr-defined]  # a generator
                # No server lets an app close a connection: the little that the client
                # has not read waits for it, without a limit, as any answer does.
                await send(_END)
                is_open = False
                raise _ReaderStuckError from None

        try:
            await super().__call__(scope, receive, send_in_time)
            if is_open:  # the server is shut down: it would log an error
                # ASGI lets servers raise one as well if the client has left.
                with suppress(OSError):
                    async with asyncio.timeout(_FAREWELL):
                        await send(_END)
        except _ReaderStuckError:
            pass
        finally:
            asking.cancel()
            # The generator does not run if the client left before the first frame.
            self._close()

    def _log_end(self, reason: str) -> None:
        if not self._is_ending:
            logger.info("A client's stream ends. %s", reason)
        self._is_ending = True

    def _close(self) -> None:
        for each in self._sources:
            each.close()

    async def _ask_again(self) -> None:
        """End the stream once its client may not read any more."""
        try:
            while True:
                await asyncio.sleep(self._heartbeat)
                await self._permit()
        except HTTPException as error:
            self._refusal = str(error.detail)
            self._close()

    async def _bytes(self) -> AsyncIterator[bytes]:
        heartbeat = f": heartbeat {self._heartbeat:g}\n".encode()
        yield heartbeat + f"retry: {RETRY_SECONDS * 1000}\n\n".encode()
        try:
            async with aclosing(self._frames()) as ready:
                async for frames in ready:
                    for piece in pieces_of(frames) if frames else [heartbeat + b"\n"]:
                        yield piece
                        if self._refusal is None:
                            continue
                        if piece.endswith(b"\n\n"):
                            break
                        return
        except MongoSessionServiceError as error:
            self._log_end(str(error))
            yield trouble(*reason_of(error))
        except HTTPException as error:
            self._refusal = str(error.detail)
        if self._refusal is not None:
            yield trouble(RETRY_SECONDS, self._refusal)

    async def _frames(self) -> AsyncGenerator[list[Frame], None]:
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
                frames = outbox.empty()
                if self._refusal is not None:
                    return
                if frames:
                    yield frames
                for each in ended:
                    each.result()
                if filling[0] in ended:
                    return
        finally:
            for each in filling:
                each.cancel()
            await asyncio.gather(*filling, return_exceptions=True)


class _ReaderStuckError(Exception):
    """A client that does not read has left, or was told the end of its stream."""


def trouble(seconds: int, reason: str) -> bytes:
    """Tell a client why its stream ends, and when to come back."""
    data = json.dumps({"reason": reason})
    return f"retry: {seconds * 1000}\nevent: trouble\ndata: {data}\n\n".encode()


def reason_of(error: MongoSessionServiceError) -> tuple[int, str]:
    """Return the seconds until a client should reconnect, and why its stream ended."""
    match error:
        case SlowSubscriberError():
            return RETRY_SECONDS, "This client read too slowly."
        case HistoryLostError():
            return RETRY_SECONDS, "Changes were missed and cannot be recovered."
        case StorageUnavailableError():
            return problems.RETRY_SECONDS, problems.UNAVAILABLE
        case _:
            return _MUCH_LATER, problems.SEE_LOG
