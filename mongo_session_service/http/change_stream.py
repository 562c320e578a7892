"""Change streams over HTTP: server-sent events of a session, of many, or of both."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Final, NamedTuple, TypeAlias, cast

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.platform import time
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from mongo_session_service.changes.change import Change
from mongo_session_service.driver.cooperative import Pace
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
from mongo_session_service.service import MongoSessionService, backends_of

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

_END: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": False}


class Frame(NamedTuple):
    """One server-sent event."""

    kind: str
    data: str
    id: str | None = None


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
                await pace.yield_to_loop()
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
        self,
        subscription: SessionSubscription,
        after_partial: tuple[int, int] | None,
        budget: ReadingBudget,
    ) -> None:
        self._subscription = subscription
        self._after_partial = after_partial
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
            await pace.yield_to_loop()
        if self._held is not None:
            self._held.shrink(each.data for each in self._page)

    def close(self) -> None:
        """End it at once."""
        self._subscription.close()
        self._page.clear()
        if self._held is not None:
            self._held.release()

    def _frame_of(self, change: Change) -> Frame:
        """Make its frame, with the id by which a client resumes after it, if it can."""
        if change.turn is not None and change.turn_position is not None:
            self._after_partial = (change.turn.epoch, change.turn_position)
        elif change.revision is None:
            return Frame(change.kind, change.json_text)
        place = (self._subscription.last_revision, *(self._after_partial or ()))
        return Frame(change.kind, change.json_text, "-".join(map(str, place)))


class Earlier:
    """The events of a session before a revision, the latest first."""

    def __init__(
        self, pages: AsyncGenerator[list[Change]], budget: ReadingBudget
    ) -> None:
        self._pages = pages
        self._budget = budget
        self._held: Reservation | None = None
        self._page: deque[Frame] = deque()
        self._is_over = False

    async def next_frame(self) -> Frame | None:
        """Read on, as far as clients have taken what was read; None at the end."""
        while not self._page and not self._is_over:
            self._held = await self._budget.reserve_page()
            await self._read_page()
            self._held.shrink(each.data for each in self._page)
        if not self._page:
            return None
        frame = self._page.popleft()
        if not self._page and self._held is not None:
            self._held.release()
        return frame

    async def _read_page(self) -> None:
        pace = Pace()
        try:
            changes = await anext(self._pages, None)
        except SessionNotFoundError:  # which the other source tells
            self._is_over = True
            return
        for each in changes or ():
            self._page.append(Frame("earlier", each.json_text))
            await pace.yield_to_loop()
        if changes is None:
            self._is_over = True
            self._page.append(Frame("beginning", "{}"))

    def close(self) -> None:
        """End it at once."""
        self._is_over = True
        self._page.clear()
        if self._held is not None:
            self._held.release()


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
        self._first: Frame | None = None

    def tell_deleted(self, key: SessionKey) -> None:
        """Tell first of a session that was deleted while its reader was away."""
        gone = Change(kind="deleted", **key.id, time=time.get_time())
        self._first = Frame(gone.kind, gone.json_text)

    async def next_frame(self) -> Frame | None:
        """Wait for what is to be sent next; None at the end."""
        first, self._first = self._first, None
        if first is not None:
            return first
        async for change in self._subscription:
            if change.kind != "partial" and await self._is_shown(change):
                return Frame(change.kind, change.outline_text)
        return None


Source: TypeAlias = Content | Earlier | Outlines


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


async def open_content(
    service: MongoSessionService,
    key: SessionKey,
    start: StreamStart,
    place: StreamPlace | None,
    budget: ReadingBudget,
) -> list[Source]:
    """Open the stream of a session, and read what it begins with.

    A client that comes back goes on after its place; if the session has not come to it,
    it begins anew.

    Raises:
        InvalidInputError: there are two beginnings; or the session has not reached the
            revision, or was trimmed.
        SessionNotFoundError: it is not stored.
    """
    if start.history is not None and start.after_revision is not None:
        raise InvalidInputError("Give history or after_revision, not both.")
    size = backends_of(service).limits.http_unread_bytes
    after = start.after_revision if place is None else place.revision
    before = start.before_revision
    log_begins = 0
    while True:
        from_start = start.history == "all" and after is None
        partial = place.partial if place is not None and start.partials else None
        try:
            async with AsyncExitStack() as opening:
                held = await budget.reserve_page()
                opening.callback(held.release)
                subscription = service.watch(
                    *key,
                    after_revision=log_begins if from_start else after,
                    max_bytes=size,
                    partials=start.partials,
                    after_partial=partial,
                )
                await opening.enter_async_context(subscription)
                # After the subscription: if the session is recreated in between, the
                # subscription delivers ``deleted``.
                first = await _read_snapshot(service, key) if from_start else None
                subscription = cast("SessionSubscription", subscription)
                content = Content(subscription, partial, budget)
                await content.begin(held, first)
                opening.pop_all()
                if after is None:
                    before = (subscription.last_revision or 0) + 1
                if start.history != "newest_first" or before is None:
                    return [content]
                return [content, Earlier(subscription.earlier(before), budget)]
        except InvalidInputError as error:
            if from_start and isinstance(error, TrimmedError):
                log_begins = error.log_begins
            elif place is not None:
                place = after = None
            else:
                raise


async def _read_snapshot(service: MongoSessionService, key: SessionKey) -> Change:
    async with service.watch(*key) as changes:
        return await anext(changes)


class ChangeStream(EventSourceResponse):
    """Sends what its sources have until the first of them ends, or nobody may read it.

    A reader that takes nothing for ``http_unread_seconds`` is cut off.
    """

    media_type = "text/event-stream"

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
        asking = asyncio.create_task(self._recheck_permission())
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

    async def _recheck_permission(self) -> None:
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
