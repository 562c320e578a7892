"""Running turns: each an ADK ``Runner`` at work in the turn of a session, in a task.

The task belongs to nobody's request: readers come and leave. It ends with its runner,
or when it is stopped: here, or by whoever asks for it in the session's document.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, suppress
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, TypedDict

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event

from mongo_session_service._public import public
from mongo_session_service.backend import Backends
from mongo_session_service.errors import (
    MongoSessionServiceError,
    quoted,
    service_closed_error,
    session_not_found_error,
    turn_lost_error,
)
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage.tasks import (
    ignore_failure,
    keep_running,
    running_loop,
    uninterrupted,
)
from mongo_session_service.telemetry import TurnSpan
from mongo_session_service.turns.closing_events import (
    closing_events_of_failed,
    closing_events_of_stopped,
    interrupted_answers,
)
from mongo_session_service.turns.partial_events import (
    EventInbox,
    PartialQueue,
    PartialWriter,
    is_text,
)
from mongo_session_service.turns.turn import Turn
from mongo_session_service.turns.waiting_line import TurnStatus, load_turn_states

if TYPE_CHECKING:
    from types import TracebackType

    from google.adk.agents.run_config import RunConfig
    from google.adk.runners import Runner
    from google.genai import types

logger = logging.getLogger(__name__)

_CLOSED: Final = "the service was closed"
_CANCELLED: Final = (
    "The agent in the turn of session {} was cancelled, though nobody had stopped the"
    " turn: one of its tools, models or callbacks has let a CancelledError out. Have it"
    " raise another error."
)
_GONE: Final = "it was deleted, or has expired, while its turn ran"
GONE_SECONDS: Final = 0.8
"""Seconds in which the task of a cancelled agent has to end whose session is gone."""
_LAST_WRITE: Final = 2.0
"""Seconds in which the end of the last turns is written, when a service is closed."""


class RunArguments(TypedDict, total=False):
    """Arguments that a turn passes on to ``Runner.run_async``."""

    new_message: types.Content | None
    run_config: RunConfig | None
    state_delta: dict[str, Any] | None
    invocation_id: str | None
    yield_user_message: bool
    abort_signal: asyncio.Event | None


def root_agent_name(runner: Runner) -> str | None:
    """The name of a runner's root agent; an application's own runner may have none."""
    return getattr(getattr(runner, "agent", None), "name", None)


@public
class RunningTurn:
    """A turn in which an agent runs, begun by ``MongoSessionService.start_turn``.

    ::

        async for event in running:
            ...  # leave when you like: the turn goes on

    Each reader receives the runner's events from the first one on. A reader that comes
    late, or reads slowly, receives the pieces of a text that wait for it as one piece;
    those of an event that is complete by then are left out. What the runner raises is
    raised to each reader, after the events.
    """

    def __init__(
        self,
        turn: Turn,
        runner: Runner,
        run_arguments: RunArguments,
        *,
        keeps_partial_answer: bool = True,
        is_paced: bool = False,
    ) -> None:
        self.turn = turn
        """The turn that it holds."""
        turn.root_agent_name = root_agent_name(runner)
        self._runner = runner
        self._run_arguments = run_arguments
        self._writer: PartialWriter
        self._partials: PartialQueue | None = None
        """The partials that other processes receive; None before it has the turn."""
        self._keeps_partial_answer = keeps_partial_answer
        self._is_paced = is_paced
        """Whether the runner continues only when its reader wants the next event."""
        self._wanted = asyncio.Semaphore(0)
        self._is_stopped = asyncio.Event()
        self._loss: Exception | None = None
        """Raised to its readers if the session is gone, or the turn was taken over."""
        self._failure: BaseException | None = None
        """Raised to its readers: that, or what the agent has raised."""
        self._traceback: TracebackType | None = None
        """The failure's, without the frames of a reader."""
        self._aborts = asyncio.Event()
        """ADK's signal."""
        self._so_far = EventInbox()
        """The events so far, which a new reader receives first."""
        self._inboxes: dict[EventInbox, asyncio.Event] = {}
        self._task: asyncio.Task[None]

    def __repr__(self) -> str:
        return f"<RunningTurn {self.epoch} of session {self.turn.key.session_id!r}>"

    @property
    def epoch(self) -> int:
        """The number of the turn: each turn of a session has a higher one."""
        return self.turn.info.epoch

    @property
    def session_id(self) -> str:
        """The session that it runs in; with ``instead_of`` that is a new branch."""
        return self.turn.key.session_id

    @property
    def has_begun(self) -> bool:
        """Whether its agent was started in the turn, of a session that is stored."""
        return self.turn.has_begun.is_set()

    @property
    def is_done(self) -> bool:
        """Whether the task has ended, and the turn is released."""
        return self._task.done()

    def create_task(self, writer: PartialWriter) -> asyncio.Task[None]:
        """Create its task, which is about to take the turn."""
        self._writer = writer
        # In a copy of the caller's context: spans of the turn are below the caller's.
        self._task = asyncio.create_task(self._hold_turn())
        self._task.add_done_callback(ignore_failure)  # result() raises it
        return self._task

    async def wait_begin(self) -> None:
        """Wait until it holds the turn; raise if it cannot."""
        task = self._task
        try:
            await _wait_for_either(task, self.turn.has_begun)
        except asyncio.CancelledError:
            self.stop_or_refuse(None)
            await uninterrupted(asyncio.wait({task}))
            raise
        if not self.has_begun:
            if task.cancelled() and self._is_stopped.is_set():
                raise service_closed_error()
            task.result()

    def stop_or_refuse(self, reason: str | None = _CLOSED) -> None:
        """Stop it, or if it does not hold the turn yet, have its start raise."""
        self.request_stop(reason)
        if not self.has_begun:
            self._task.cancel()

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        inbox, has_more = self._so_far.copy(), asyncio.Event()
        self._inboxes[inbox] = has_more
        try:
            while True:
                for event in inbox.drain():
                    yield event
                    self._wanted.release()
                if self.is_done and not inbox:
                    break
                await _wait_for_either(self._task, has_more)
                has_more.clear()
        finally:
            del self._inboxes[inbox]
        self._raise_failure()

    async def result(self) -> list[Event]:
        """Wait for its end, and return all whole events of the runner.

        Raises:
            SessionNotFoundError: the session was deleted or has expired meanwhile.
            MongoSessionServiceError: storage failed, or the turn was lost: one of its
                subclasses; or the agent was cancelled, and nobody had stopped the turn.
                What else the agent raised is raised as it is.
        """
        await self.wait_end()
        self._raise_failure()
        return [each for each in self._so_far if not each.partial]

    async def wait_end(self) -> None:
        """Wait until it has ended, however."""
        await asyncio.wait({self._task})

    def request_stop(self, reason: str | None) -> None:
        """Ask an agent that runs to stop soon; the first reason counts."""
        if self.turn.info.status == "running" and not self._is_stopped.is_set():
            self.turn.set_status("stopping", reason=reason)
            self._is_stopped.set()

    @property
    def _is_gone(self) -> bool:
        """Whether its session is known to be gone."""
        return self._partials is not None and self._partials.is_discarded

    def heed(self, found: TurnStatus | None) -> None:
        """Have it end soon, if what was found of its session is a reason to."""
        created, session_id = self.turn.info.session_create_time, self.turn.key[2]
        stop = found.stop if found and found.epoch == self.epoch else None
        if found is None or found.create_time != created or (stop or {}).get("erases"):
            self._end_gone()
        elif stop is not None:
            self.request_stop(stop.get("reason"))
        elif self.turn.is_lost and not self._is_stopped.is_set():
            self._loss = turn_lost_error(session_id)
            self._is_stopped.set()

    def _end_gone(self) -> None:
        """Have it end soon, and write nothing more: its session is gone."""
        error = session_not_found_error(self.turn.key.session_id, f": {_GONE}")
        self._failure = self._loss = error
        self.turn.set_status("failed", reason=_GONE, error=type(error).__name__)
        if self._partials is not None:
            self._partials.is_discarded = True
        self._is_stopped.set()

    async def stop(self, reason: str | None = None) -> None:
        """Stop the agent, and return when the turn has ended; idempotent.

        Open calls are answered with an error, as ADK does it when a client aborts, and
        what there is of an answer so far is kept, see ``start_turn``.

        Args:
            reason: Why: shown in the turn's status.
        """
        self.request_stop(reason)
        await self.wait_end()

    def _raise_failure(self) -> None:
        if error := self._task.exception():
            self._traceback = self._traceback or error.__traceback__
            raise _copy_of(error).with_traceback(self._traceback)

    async def _hold_turn(self) -> None:
        """Hold the turn while the runner runs; followers see its begin and end."""
        try:
            async with self.turn:
                if self.turn.resumes:
                    if self.turn.resumed_invocation is None:
                        self.turn.fail_if_taken_over()
                        return
                    self._run_arguments["invocation_id"] = self.turn.resumed_invocation
                self._partials = PartialQueue(self.turn.info)
                self._write_status()
                self.turn.has_open_log = True
                with self._span() as span:
                    running = asyncio.create_task(self._run_agent())
                    if self.turn.unborn is None:
                        self.turn.has_begun.set()
                    await self._await_agent(running)
                    await self._close_log(running)
                    if self._is_gone:
                        await self._writer.settle()
                    info = self.turn.info
                    span.status, span.error_type = info.status, info.error_type
        finally:
            if self._partials is not None:
                self._partials.has_ended = True
            self._write_status()
        if self._failure is not None:
            raise self._failure

    def _span(self) -> TurnSpan:
        app_name, _, session_id = self.turn.key
        database = self.turn.turns.database_name
        return TurnSpan(database, app_name, session_id, self.epoch)

    async def _await_agent(self, running: asyncio.Task[None]) -> None:
        try:
            await _wait_for_either(running, self._is_stopped)
            if not running.done():
                if self._loss is None:
                    self.turn.set_status("stopping")
                    self._write_status()
                await self._end_agent(running)
        finally:  # also when the event loop ends, which cancels all tasks
            running.cancel()

    def _write_status(self) -> None:
        """Show followers in other processes how the turn stands, or has ended."""
        if self._partials is not None:
            self._partials.add_status(self.turn.info)
            self._writer.write_soon(self._partials, self.turn.turns.backends)

    async def _run_agent(self) -> None:
        arguments, key = self._run_arguments.copy(), self.turn.key
        # An application's own runner may not have the argument.
        if "abort_signal" in signature(self._runner.run_async).parameters:
            arguments.setdefault("abort_signal", self._aborts)
        running = self._runner.run_async(
            user_id=key.user_id, session_id=key.session_id, **arguments
        )
        async with aclosing(running) as events:
            async for event in events:
                self._publish(event)
                if self._is_paced and not self._is_stopped.is_set():
                    await self._wanted.acquire()

    def _publish(self, event: Event) -> None:
        """Put an event into the inboxes of all readers, and keep it for later ones."""
        if is_text(event) or not event.partial:
            self._so_far.add_event(event)
        if event.partial and self._partials is not None and self.turn.is_held:
            self._partials.add_partial(event)
            self._writer.write_soon(self._partials, self.turn.turns.backends)
        for inbox, has_more in self._inboxes.items():
            inbox.add_event(event)
            has_more.set()

    async def _end_agent(self, running: asyncio.Task[None]) -> None:
        limits = self.turn.turns.backends.limits
        self._aborts.set()
        self._wanted.release()
        _, pending = await asyncio.wait({running}, timeout=limits.abort_seconds)
        if pending:  # a SequentialAgent looks at the signal between events only
            running.cancel()
            seconds = GONE_SECONDS if self._is_gone else limits.cancel_seconds
            _, pending = await asyncio.wait({running}, timeout=seconds)
        if pending:
            self.turn.runaway = running
            running.add_done_callback(ignore_failure)
            logger.warning(
                "The agent in the turn of session %s ignores that it was stopped and"
                " cancelled. It stores nothing more.",
                quoted(self.turn.key.session_id),
            )

    async def _close_log(self, running: asyncio.Task[None]) -> None:
        """Set how the turn has ended, and close what it has left open in the log."""
        turn = self.turn
        is_stopped = self._is_stopped.is_set() and self._loss is None
        if is_stopped:
            turn.set_status("stopped")
        elif error := self._loss or self._error_of(running):
            turn.set_status("failed", error=type(error).__qualname__)
            if isinstance(error, asyncio.CancelledError):  # it was not the readers'
                error = MongoSessionServiceError(
                    _CANCELLED.format(quoted(turn.key.session_id))
                )
            self._failure = error
            logger.warning(
                "The turn of session %s has failed with %s.",
                quoted(turn.key.session_id),
                turn.info.error_type,
            )
        else:
            turn.set_status("ended")
            turn.has_open_log = False
            return
        if self._is_gone or turn.unborn is not None:
            return
        with suppress(MongoSessionServiceError):  # who takes the turn next closes it
            try:
                log = await turn.load_own_events()
            except SessionNotFoundError:
                self._end_gone()
                return
            if is_stopped:
                closing = closing_events_of_stopped(log, turn.root_agent_name)
            else:
                closing = closing_events_of_failed(log)
            if self._keeps_partial_answer:
                texts = [each for each in self._so_far if is_text(each)]
                closing += interrupted_answers(texts, log)
            for event in closing:
                await turn.append_event(event)
                self._publish(event)
            turn.has_open_log = False

    def _error_of(self, running: asyncio.Task[None]) -> BaseException | None:
        """Return what has failed an agent that nobody has stopped, if anything has."""
        if not running.cancelled() and (error := running.exception()):
            return error
        # If a tool raises CancelledError, ADK ends the run as if all were well.
        whole = [each for each in self._so_far if not each.partial]
        is_cut_off = bool(whole) and not whole[-1].is_final_response()
        if running.cancelled() or (is_cut_off and closing_events_of_failed(whole)):
            return asyncio.CancelledError()
        return None


async def _wait_for_either(task: asyncio.Task[None], event: asyncio.Event) -> None:
    is_set = asyncio.create_task(event.wait())
    try:
        ends: set[asyncio.Future[Any]] = {task, is_set}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_set.cancel()


def _copy_of(error: BaseException) -> BaseException:
    """Copy an error for one reader: a shared one would keep the frames of all."""
    with suppress(Exception):  # its class has an idea of its own of how to be made
        copied = type(error).__new__(type(error), *error.args)
        vars(copied).update(vars(error))
        copied.__cause__, copied.__context__ = error.__cause__, error.__context__
        copied.__suppress_context__ = error.__suppress_context__
        if str(copied) == str(error):
            return copied
    return error


class _LoopTurns:
    """The running turns of one event loop, and what serves them all."""

    def __init__(self) -> None:
        self.writer = PartialWriter()
        self.turns: set[RunningTurn] = set()
        self.polling: asyncio.Task[None] | None = None


class RunningTurns:
    """The running turns of one service, in whichever event loop they run."""

    def __init__(self, backends: Backends) -> None:
        self.backends = backends
        self._closing = 0
        """How many calls close the service now."""

    async def start(self, running: RunningTurn) -> None:
        """Begin a turn, and watch for requests to stop it."""
        if self._closing:
            raise service_closed_error()
        backend = await self.backends.backend()
        here = backend.part(_LoopTurns)
        task = running.create_task(here.writer)
        here.turns.add(running)  # from now on close() finds it
        task.add_done_callback(lambda _: here.turns.discard(running))
        if self._closing or self.backends.here() is not backend:
            running.stop_or_refuse()  # the service is being closed, or was meanwhile
        await running.wait_begin()
        if here.polling is None or here.polling.done():
            here.polling = keep_running(
                "The poll for turns to be stopped", self._poll_stops, here
            )

    def find(self, key: SessionKey) -> RunningTurn | None:
        here = self.backends.parts(_LoopTurns).get(running_loop())
        for each in here.turns if here else ():
            if each.turn.key == key and each.has_begun:
                return each
        return None

    @asynccontextmanager
    async def stopped(self, grace: float) -> AsyncGenerator[None, None]:
        """Stop all turns, those of this event loop if they outlast so many seconds.

        As long as the block lasts, no turn is started.
        """
        self._closing += 1
        try:
            await self._stop_all(grace)
            yield
        finally:
            self._closing -= 1

    async def _stop_all(self, grace: float) -> None:
        loops = self.backends.parts(_LoopTurns)
        here = loops.pop(running_loop(), None)
        for loop, others in loops.items():
            for each in others.turns.copy():
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(each.stop_or_refuse)
        if here is None:
            return
        if turns := here.turns.copy():
            for each in turns:
                if not each.has_begun:
                    each.stop_or_refuse()
            ends = {asyncio.ensure_future(each.wait_end()) for each in turns}
            await asyncio.wait(ends, timeout=grace)
            await asyncio.gather(*(each.stop(_CLOSED) for each in turns))
        if here.polling is not None:
            here.polling.cancel()
        await here.writer.finish(_LAST_WRITE)

    async def _poll_stops(self, here: _LoopTurns) -> None:
        """Look which turns are to be stopped, as long as any runs here."""
        pause = 0.0
        while here.turns:
            with suppress(MongoSessionServiceError):  # it looks again soon
                backend = await self.backends.backend()
                pause = backend.storage.limits.stop_poll_seconds
                held = {each for each in here.turns if each.has_begun}
                keys = {each.turn.key for each in held}
                stored = await load_turn_states(backend.storage, keys)
                for each in held:
                    each.heed(stored.get(each.turn.key))
            await asyncio.sleep(pause)
