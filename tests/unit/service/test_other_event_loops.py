"""Calls of the service where asyncio does not run, under trio for example."""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import AsyncIterable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from google.adk.events import Event
from google.adk.sessions import Session
from mongomock_motor import AsyncMongoMockClient
from pymongo import AsyncMongoClient
from support.hostile_values import FakeRunner

from mongo_session_service import ConfigurationError, MongoSessionService

APP = {"app_name": "app"}
USER = {**APP, "user_id": "user"}
SESSION = {**USER, "session_id": "s"}
OF_USER = {"user_id": "user", "session_id": "s"}
NOWHERE = "mongodb://127.0.0.1:1/"
NEEDS_NOTHING = {"flush"}


async def entered(manager: AbstractAsyncContextManager[object]) -> None:
    async with manager:
        pass


async def read(iterable: AsyncIterable[object]) -> None:
    async for _ in iterable:
        pass


def coroutines(service: MongoSessionService) -> dict[str, Coroutine[Any, Any, Any]]:
    """Every public call of the service, not yet begun."""
    consumer = service.consumer("c")
    session = Session(id="s", **USER)
    runner: Any = FakeRunner()
    return {
        "append": service.append(**SESSION, event=Event(author="x")),
        "append_event": service.append_event(session, Event(author="x")),
        "close": service.close(),
        "consumer": read(consumer),
        "consumers": service.consumers(),
        "create_session": service.create_session(**SESSION),
        "delete_app": service.delete_app(**APP),
        "delete_session": service.delete_session(**SESSION),
        "delete_user": service.delete_user(**USER),
        "find_branches": service.find_branches(**SESSION),
        "find_sessions": service.find_sessions(**APP),
        "fork_session": service.fork_session(**SESSION),
        "find_turns": service.find_turns(),
        "get_event": service.get_event(**SESSION, event_id="e"),
        "get_session": service.get_session(**SESSION),
        "get_session_at": service.get_session_at(**SESSION, revision=0),
        "get_user_state": service.get_user_state(**USER),
        "iter_events": read(service.iter_events(**SESSION)),
        "iter_user_events": read(service.iter_user_events(**USER)),
        "list_sessions": service.list_sessions(**APP),
        "ping": service.ping(),
        "prune": service.prune(),
        "recover_turns": service.recover_turns(runner),
        "redact_events": service.redact_events(**SESSION, event_ids=["e"]),
        "setup": service.setup(),
        "show_branch": service.show_branch(**SESSION),
        "start_turn": service.start_turn(runner, **OF_USER),
        "stop_turn": service.stop_turn(**SESSION),
        "run_turn": read(service.run_turn(runner, **OF_USER)),
        "turn": entered(service.turn(**SESSION)),
        "trim_session": service.trim_session(**SESSION, keep_last=1),
        "update_session": service.update_session(**SESSION, title="t"),
        "wait_for": service.wait_for(**SESSION, revision=1),
        "watch": entered(service.watch(*USER.values(), "s")),
        "watch all": entered(service.watch()),
        "with": entered(service),
        "with a consumer": consumer.run(print),
        "with dead letters": read(consumer.dead_letters()),
        "with dead letters again": consumer.replay_dead_letters(print),
    }


@pytest.mark.parametrize("name", ["uri", "client", "mock"])
def test_the_error_is_clear_and_nothing_is_left(name: str) -> None:
    """It names asyncio and the ways there, and no coroutine was never awaited."""
    service = {
        "uri": lambda: MongoSessionService(NOWHERE),
        "client": lambda: MongoSessionService(
            client=AsyncMongoClient(NOWHERE, connect=False)
        ),
        "mock": lambda: MongoSessionService(
            client=AsyncMongoMockClient(), transactions=False
        ),
    }[name]()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in coroutines(service).values():
            with pytest.raises(ConfigurationError, match="asyncio.*trio"):
                each.send(None)
        gc.collect()


def test_every_public_call_is_tried() -> None:
    """A new method is one that was tried here."""
    methods = inspect.getmembers(MongoSessionService, inspect.isfunction)
    public = {name for name, _ in methods if not name.startswith("_")}
    service = MongoSessionService(NOWHERE)
    tried = coroutines(service)
    for each in tried.values():
        each.close()

    assert public - tried.keys() == NEEDS_NOTHING | {"feed_stats"}
