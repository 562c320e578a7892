"""An event loop that ends while background tasks still work in it."""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections.abc import Callable
from typing import Any

import pytest

from mongo_session_service import MongoSessionService
from mongo_session_service.sessions.sweep import remove_all_expired
from mongo_session_service.storage.tasks import keep_running
from mongo_session_service.testing import Limits

Work = Callable[[MongoSessionService], Any]

IDS = {"app_name": "app", "user_id": "user"}
ITERATIONS = 40
"""Until a sweep is over, and a feed waits for changes."""


class CountingSelector(selectors.DefaultSelector):
    """Calls a function in one iteration of its event loop, which selects in each."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.call: Callable[[], None] = lambda: None

    def select(self, timeout: float | None = None) -> Any:
        self.left -= 1
        if self.left == 0:
            self.call()
        return super().select(timeout)


async def sweep(service: MongoSessionService) -> Any:
    backend = await service._backends.backend()  # noqa: SLF001
    return keep_running("The sweep", remove_all_expired, backend.storage)


async def watch(service: MongoSessionService) -> Any:
    """Open a subscription, whose feed opens its stream in the next iterations."""
    subscription = service.watch("app")
    await subscription.__aenter__()
    return subscription


def abandon_at(
    iteration: int,
    service: MongoSessionService,
    work: Work,
    *,
    shuts_down: bool,
    settles: bool,
) -> None:
    """End a loop in one iteration of some work, or soon if there are not so many."""
    selector = CountingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    selector.call = loop.stop
    if settles:
        loop.run_until_complete(service._backends.backend(stays=True))  # noqa: SLF001
    if shuts_down:  # else what it removes would stay locked for a minute
        loop.run_until_complete(service.create_session(**IDS, ttl=0.001))
    kept = loop.run_until_complete(work(service))
    selector.left = iteration
    timer = loop.call_later(60 if settles else 0.05, loop.stop)
    loop.run_forever()
    timer.cancel()
    selector.left = 0
    if shuts_down:
        loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    del kept


async def collect() -> None:
    """Collect garbage while another event loop runs, also what finalizers let go of."""
    while gc.collect():  # noqa: ASYNC110  garbage sends no signal
        await asyncio.sleep(0)


@pytest.fixture
def _few_objects() -> None:
    """Collections look at what the test makes alone, which is faster."""
    for _ in range(3):
        gc.collect()  # also what finalizers of others' garbage have let go of
    gc.freeze()


@pytest.mark.usefixtures("_few_objects")
@pytest.mark.limits(stream_await_seconds=0.01)  # an iteration is over soon
@pytest.mark.filterwarnings(
    # Without shutdown_asyncgens(), the client ends so as well, and its own tasks.
    r"ignore:coroutine .* was never awaited:RuntimeWarning",
    r"ignore:Unclosed AsyncMongoClient:ResourceWarning",
)
@pytest.mark.parametrize(
    ("shuts_down", "settles"), [(True, True), (False, True), (True, False)]
)
@pytest.mark.parametrize("work", [sweep, watch])
def test_background_tasks_end_silently_with_their_loop(
    work: Work,
    shuts_down: bool,  # noqa: FBT001  a parameter of the test
    settles: bool,  # noqa: FBT001  whether the loop has a client of its own
    mongodb_uri: str,
    database: str,
    limits: Limits,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Wherever they wait, nothing is repeated, logged or raised when they are gone."""
    service = MongoSessionService(mongodb_uri, database=database, _limits=limits)
    for iteration in range(1, ITERATIONS, 4):
        abandon_at(iteration, service, work, shuts_down=shuts_down, settles=settles)
        asyncio.run(collect())
    asyncio.run(service.list_sessions(app_name="app"))  # lets go of the last loop
    asyncio.run(collect())

    logged = [each.getMessage() for each in caplog.records]
    if not shuts_down:  # asyncio reports the driver's tasks
        lost = "Task was destroyed but it is pending!"
        logged = [it for it in logged if not it.startswith(lost) or "background" in it]
    assert logged == []
