"""Background tasks: logged with the cause when one dies, and started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextvars import Context
from types import ModuleType
from typing import Any

import pytest
from google.adk.agents import BaseAgent
from google.adk.agents.invocation_context import InvocationContext
from google.adk.events import Event
from google.adk.runners import Runner
from support.one_session import IDS, read
from support.scripted_model import said
from support.subscriptions import APP, SESSION, Follower, new_event, until

from mongo_session_service import MongoSessionService, MongoSessionServiceError
from mongo_session_service.changes import decoder
from mongo_session_service.sessions import sweep
from mongo_session_service.storage import lease
from mongo_session_service.turns import running_turns, waiting_line

Kill = Callable[..., None]
QUOTED = "what an error may quote"


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Kill:
    """Have a function of a module raise what nobody expects, once."""

    def kill(
        module: ModuleType, name: str, error: type[BaseException] = ZeroDivisionError
    ) -> None:
        function = getattr(module, name)

        def die(*_: Any, **__: Any) -> Any:
            monkeypatch.setattr(module, name, function)
            raise error(QUOTED)

        monkeypatch.setattr(module, name, die)

    return kill


class SilentAgent(BaseAgent):
    """An agent that never says anything."""

    async def _run_async_impl(
        self,
        ctx: InvocationContext,  # noqa: ARG002  ADK's signature
    ) -> AsyncGenerator[Event, None]:
        await asyncio.Event().wait()
        yield Event(author=self.name)


def assert_logged(
    caplog: pytest.LogCaptureFixture, task: str, error: str = "ZeroDivisionError"
) -> None:
    """Its death was logged once, with the cause and without the error's text."""
    (record,) = (it for it in caplog.records if it.levelno >= logging.ERROR)
    assert record.getMessage().startswith(f"{task} died of {error} at ")
    assert "in die" in record.getMessage()
    assert QUOTED not in caplog.text


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_waiters_outlive_their_task(
    service: MongoSessionService,
    kill: Kill,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    """Who waits for a turn gets it; a cancellation that nobody asked for is a death."""
    await service.create_session(**IDS)
    async with service.turn(**IDS):
        kill(waiting_line, "load_turn_states", error)

        async def wait() -> str:
            async with service.turn(**IDS) as session:
                return session.id

        waiter = asyncio.create_task(wait(), context=Context())
        await until(lambda: caplog.records)
    assert await waiter == IDS["session_id"]
    assert_logged(caplog, "The check for free turns", error.__name__)


@pytest.mark.limits(lease_seconds=1.0, lease_renewal_seconds=0.1)
async def test_leases_outlive_their_thread(
    service: MongoSessionService,
    second: MongoSessionService,
    kill: Kill,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A turn is renewed by the thread's next run, so nobody else gets it."""
    await service.create_session(**IDS)
    kill(lease, "_renew_due")
    async with service.turn(**IDS) as session:
        with pytest.raises(TimeoutError):
            async with second.turn(**IDS, wait=2.0):
                pass
        await service.append_event(session, new_event())
    assert_logged(caplog, "The renewal of leases")


async def test_a_running_turn_is_stopped_after_its_poll_has_died(
    service: MongoSessionService,
    second: MongoSessionService,
    kill: Kill,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The look for stops is there again when somebody asks for one."""
    await service.create_session(**IDS)
    kill(running_turns, "load_turn_states")
    runner = Runner(
        agent=SilentAgent(name="agent"),
        app_name=IDS["app_name"],
        session_service=service,
    )
    running = await service.start_turn(
        runner,
        user_id=IDS["user_id"],
        session_id=IDS["session_id"],
        new_message=said("hello"),
    )
    await until(lambda: caplog.records)
    assert await second.stop_turn(**IDS)
    await running.wait_end()
    assert_logged(caplog, "The poll for turns to be stopped")


async def test_the_sweep_goes_on(
    service: MongoSessionService, kill: Kill, caplog: pytest.LogCaptureFixture
) -> None:
    """What expires is removed by its next run."""
    kill(sweep, "remove_all_expired")
    async with Follower(service.watch(APP)) as follower:
        await service.create_session(**SESSION, ttl=0.1)
        await follower.until(lambda: follower.gone)
    assert_logged(caplog, "The sweep of expired sessions")


async def test_subscribers_of_a_dead_feed_get_an_error(
    service: MongoSessionService, kill: Kill, caplog: pytest.LogCaptureFixture
) -> None:
    """The next subscriber starts it again."""
    session = await service.create_session(**SESSION)
    async with Follower(service.watch(APP)) as follower:
        kill(decoder, "decode_change")
        await service.append_event(session, new_event())
        assert isinstance(await follower.ended(), MongoSessionServiceError)
    assert_logged(caplog, "The change feed")
    async with Follower(service.watch(APP)) as follower:
        await service.append_event(session, new_event())
        await follower.until(lambda: follower.told)
    assert len((await read(service)).events) == 2
