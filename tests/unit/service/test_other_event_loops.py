"""Calls of the service where asyncio does not run, under trio for example."""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import AsyncIterable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from google.adk.sessions import Session
from mongomock_motor import AsyncMongoMockClient
from pymongo import AsyncMongoClient
from support.hostile_values import parameters, usual

from mongo_session_service import ConfigurationError, MongoSessionService

NOWHERE = "mongodb://127.0.0.1:1/"
NEEDS_NOTHING = {"flush", "feed_stats", "consumer"}
OF_CONSUMER = {"run", "dead_letters", "replay_dead_letters"}
MORE: dict[str, dict[str, Any]] = {
    "append_event": {"session": Session(id="s", app_name="app", user_id="user")},
    "redact_events": {"event_ids": ["e"]},
    "trim_session": {"keep_last": 1},
    "update_session": {"title": "t"},
}
"""What methods need beside what each parameter of a name usually is."""


async def begun(called: Any) -> None:
    """Wait for what a method has returned, enter it, or read it."""
    match called:
        case Coroutine():
            await called
        case AbstractAsyncContextManager():
            async with called:
                pass
        case AsyncIterable():
            async for _ in called:
                pass


def called(service: MongoSessionService) -> Iterator[Any]:
    """What each public method returns, and what else can be waited for."""
    for owner in (service, service.consumer("c")):
        for name, method in inspect.getmembers(type(owner), inspect.isfunction):
            is_tried = owner is service and name not in NEEDS_NOTHING
            if name.startswith("_") or not (is_tried or name in OF_CONSUMER):
                continue
            needed = {
                each.name: usual(each.name)
                for each in parameters(method)
                if each.default is each.empty or usual(each.name) is not None
            }
            yield method(owner, **needed | MORE.get(name, {}))
    yield from (service, anext(service.consumer("c")), service.watch())


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
        for each in called(service):
            with pytest.raises(ConfigurationError, match="asyncio.*trio"):
                begun(each).send(None)
        gc.collect()
