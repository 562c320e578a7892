"""Loop thread: one thread whose event loop has clients for loops that end soon.

A client works in one event loop. Flask, Django, Celery and ADK's ``Runner.run()`` start
a loop for each call; the client that these use is in this thread's loop, which stays.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final, TypeVar

from mongo_session_service.storage.tasks import ignore_failure, wait_for_end

Result = TypeVar("Result")

THREAD_NAME: Final = "mongo-session-service-loop"
_END_SECONDS: Final = 5.0
"""Seconds that the end of the process waits until the clients are closed."""


class _LoopThread(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name=THREAD_NAME, daemon=True)
        self.loop = asyncio.new_event_loop()

    def run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.get_loop().run_forever()
            # The process ends: nobody can do anything about what fails now.
            self.loop.set_exception_handler(lambda *_: None)


_threads: Final[dict[int, _LoopThread]] = {}
"""By process, since a thread stays in the parent of one that is forked."""
_ended: Final[set[asyncio.AbstractEventLoop]] = set()
"""Those of threads that have ended with the process, or are about to."""


def thread_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process's thread, which the first call starts."""
    thread = _threads.get(os.getpid())
    if thread is None:
        made = _LoopThread()
        thread = _threads.setdefault(os.getpid(), made)
        if thread is made:
            thread.start()
        else:  # another thread was faster
            made.loop.close()
    return thread.loop


def is_thread_loop(loop: asyncio.AbstractEventLoop) -> bool:
    thread = _threads.get(os.getpid())
    return thread is not None and loop is thread.loop


@atexit.register
def _end_thread() -> None:
    """Close the loop as ``asyncio.run()`` does, and with it its clients."""
    if (thread := _threads.get(os.getpid())) is not None:
        _ended.add(thread.loop)
        thread.loop.call_soon_threadsafe(thread.loop.stop)
        thread.join(_END_SECONDS)
        del _threads[os.getpid()]


async def in_loop_thread(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Call a function in the thread's loop, in the caller's context; await its result.

    A cancellation cancels what runs there, and waits for its end.
    """
    here = asyncio.get_running_loop()
    if _ended and threading.current_thread().daemon and not is_thread_loop(here):
        await here.create_future()  # it ends with the process, without a word
    there = thread_loop()
    if here is there:
        return await work()
    ended, context = here.create_future(), copy_context()
    task: asyncio.Task[Result]

    def start() -> None:
        nonlocal task
        task = there.create_task(work(), context=context)
        task.add_done_callback(end)

    def end(task: asyncio.Task[Result]) -> None:
        ignore_failure(task)
        if there not in _ended:  # then only threads wait that end without a word
            with suppress(RuntimeError):  # the caller's loop is closed
                here.call_soon_threadsafe(ended.set_result, None)

    def cancel() -> None:
        there.call_soon(task.cancel)  # behind its first step: what is to close begins

    there.call_soon_threadsafe(start)
    if cancelled := await wait_for_end(
        ended, lambda: there.call_soon_threadsafe(cancel)
    ):
        raise cancelled
    return task.result()
