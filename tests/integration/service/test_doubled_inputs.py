"""Whoever sends twice as much is served in twice the time, and not in four times."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import httpx
import pytest
from google.adk.agents import LlmAgent
from google.adk.events import Event, EventActions
from google.adk.runners import Runner
from pymongo import MongoClient
from support import cli_runner
from support.http_paths import SESSION, USER, app_of
from support.long_sessions import store_long_session
from support.scripted_model import ScriptedModel

import mongo_session_service
from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey
from mongo_session_service.transfer import (
    Selection,
    StoreSource,
    export,
    move,
    verify,
)

IDS: Final = {"app_name": "app", "user_id": "user"}
KEY: Final = {**IDS, "session_id": "s"}
TEXTS: Final = {"login": ":/", "escapes": '\\"', "spaces": " "}
"""What texts are made of that hurt a pattern, a parser or an escaping."""
LENGTH: Final = 15_000
"""Characters: twice as many are no more than a route takes, escaped or not."""
MANY: Final = 100
"""Events, sessions, items of a list."""
LITTLE: Final = 0.5
"""Seconds of CPU that are not compared: no call takes half of it, but one with a slow
pattern takes more for each text. So the load of the machine decides nothing."""

QUESTION: Final = {"newMessage": {"role": "user", "parts": [{"text": "hello"}]}}
PACKAGE: Final = str(Path(mongo_session_service.__file__).parent)


class Costs:
    """What a call costs: lines of this package that are run, and seconds of CPU.

    The garbage of the tests before it is not collected meanwhile.
    """

    def __init__(self) -> None:
        self.lines = 0

    def __enter__(self) -> Self:
        gc.disable()
        self._traced, self._began = sys.gettrace(), time.process_time()
        threading.settrace(self._enter_frame)
        sys.settrace(self._enter_frame)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._traced)
        threading.settrace(self._traced)  # type: ignore[arg-type]
        self.seconds = time.process_time() - self._began
        gc.enable()

    def _enter_frame(self, frame: FrameType, *_: object) -> Any:
        is_own = frame.f_code.co_filename.startswith(PACKAGE)
        return self._count_line if is_own else None

    def _count_line(self, _: FrameType, event: str, __: object) -> Any:
        self.lines += event == "line"
        return self._count_line


async def check_doubling(
    call: Callable[[int], Awaitable[object]],
    size: int,
    what: str = "",
    *,
    ends: bool = True,
) -> None:
    """Fail if a call of twice the size costs three times as much.

    The lines are only compared if it ``ends`` before it returns.
    """
    costs = []
    for each in (size, 2 * size):
        with Costs() as cost:
            await call(each)
        costs.append(cost)
    once, twice = costs
    if ends:
        assert twice.lines < 3 * once.lines, (
            f"{what}: {once.lines}, {twice.lines} lines"
        )
    if twice.seconds > LITTLE:
        assert twice.seconds < 3 * once.seconds, what


async def outcome(call: Callable[[], object]) -> None:
    """Await what a call returns; how it ends is others' to test."""
    with suppress(Exception):
        await finish(call())


def repeat(text: str, size: int) -> str:
    return text * (size // len(text))


async def finish(result: Any) -> None:
    """Await what a call returns, or read it to its end."""
    if hasattr(result, "__aiter__"):
        async for _ in result:
            pass
    elif inspect.isawaitable(result):
        await result


METHODS: Final = {
    name: method
    for name, method in vars(MongoSessionService).items()
    if callable(method)
    and not name.startswith("_")
    and name not in {"consumer", "run_turn", "start_turn", "turn", "watch", "wait_for"}
}


def texts_of(method: Callable[..., Any]) -> list[str]:
    """The parameters that take a text."""
    parameters = inspect.signature(method).parameters.values()
    return [each.name for each in parameters if "str" in str(each.annotation)]


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", [each for each in METHODS if texts_of(METHODS[each])])
async def test_texts(service: MongoSessionService, name: str) -> None:
    """Each argument of each method that takes one, alone."""
    method = METHODS[name]
    await service.create_session(**KEY)
    known = inspect.signature(method).parameters
    ids = {key: text for key, text in KEY.items() if key in known}
    for argument in texts_of(method):
        for text in TEXTS.values():

            async def call(size: int) -> None:
                given = {**ids, argument: repeat(text, size)}  # noqa: B023
                await outcome(lambda: getattr(service, name)(**given))

            await check_doubling(call, LENGTH, f"{argument}={text!r}")


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_uris_and_keys(service: MongoSessionService, text: str) -> None:
    """Those that are refused, for a reason that is looked for and quoted."""

    async def call(size: int) -> None:
        long = repeat(text, size)
        await outcome(lambda: MongoSessionService("mongodb://" + long))
        await outcome(lambda: service.create_session(**KEY, state={long: 1}))

    await check_doubling(call, LENGTH)


async def load(service: MongoSessionService, key: SessionKey, _: int) -> None:
    for _ in range(2):  # the second time from the cache
        assert await service.get_session(**key.id)


async def follow(service: MongoSessionService, key: SessionKey, size: int) -> None:
    async with service.watch(**key.id, after_revision=0) as changes:
        async for change in changes:
            if change.revision == size:
                break


async def consume(service: MongoSessionService, key: SessionKey, _: int) -> None:
    consumer = service.consumer(key.app_name, app_name=key.app_name)
    async with consumer:
        await consumer.run(lambda _: None, until_caught_up=True)


LOGS: Final[dict[str, Callable[[MongoSessionService, SessionKey, int], Any]]] = {
    "get_session": load,
    "watch": follow,
    "consumer": consume,
    "iter_events": lambda it, key, _: it.iter_events(**key.id),
    "iter_user_events": lambda it, key, _: it.iter_user_events(
        app_name=key.app_name, user_id=key.user_id
    ),
    "get_session_at": lambda it, key, size: it.get_session_at(**key.id, revision=size),
    "fork_session": lambda it, key, size: it.fork_session(**key.id, at_revision=size),
    "trim_session": lambda it, key, _: it.trim_session(**key.id, keep_last=1),
    "redact_events": lambda it, key, size: it.redact_events(
        **key.id, event_ids=[f"e{number}" for number in range(1, size + 1)]
    ),
    "delete_session": lambda it, key, _: it.delete_session(**key.id),
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", LOGS)
async def test_logs(
    service: MongoSessionService, admin: MongoClient, database: str, name: str
) -> None:
    """Of twice the events."""
    keys = {size: SessionKey(f"app{size}", "user", "s") for size in (MANY, 2 * MANY)}
    for size, key in keys.items():
        await store_long_session(service, admin, database, key, size)

    await check_doubling(
        lambda size: finish(LOGS[name](service, keys[size], size)), MANY, name
    )


MOVES: Final[
    dict[str, Callable[[StoreSource, MongoSessionService, Selection], Any]]
] = {
    "export": lambda source, _, chosen: export(source, os.devnull, chosen),
    "import": move,
    "verify": lambda source, _, chosen: verify(source, source, chosen),
}


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", MOVES)
async def test_moved_logs(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    mongodb_uri: str,
    name: str,
) -> None:
    """Of twice the events, each of which asks people for something."""
    for size in (MANY, 2 * MANY):
        key = SessionKey(f"app{size}", "user", "s")
        await store_long_session(service, admin, database, key, size)
    asks = {"event.long_running_tool_ids": ["$event.id"]}
    admin[database].events.update_many({}, [{"$set": asks}])
    async with (
        MongoSessionService(
            mongodb_uri, database=database, collection_prefix="copy_"
        ) as copy,
        StoreSource(service) as source,
    ):
        await copy.setup()

        async def call(size: int) -> None:
            chosen = Selection(apps=frozenset([f"app{size}"]))
            await MOVES[name](source, copy, chosen)

        await check_doubling(call, MANY, name)


@pytest.mark.limits(block_events=1)
async def test_sessions_that_are_not_there(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """It costs the same to look for them while twice as many others are cached."""
    lines = []
    for first in (0, 50):
        for number in range(first, first + 50):
            key = SessionKey(*IDS.values(), f"s{number}")
            await store_long_session(service, admin, database, key, 1)
            await service.get_session(**key.id)
        with Costs() as cost:
            for number in range(20):
                await service.get_session(**IDS, session_id=f"t{number}")
        lines.append(cost.lines)
    assert lines[1] < 1.2 * lines[0], lines


async def create(service: MongoSessionService, state: Any, size: int) -> None:
    await service.create_session(**IDS, session_id=f"s{size}", state=state)


async def append(service: MongoSessionService, state: Any, size: int) -> None:
    event = Event(author="x", actions=EventActions(state_delta=state))
    event.custom_metadata = state
    event.long_running_tool_ids = set(map(str, range(size)))
    await service.create_session(**IDS, session_id=f"s{size}")
    await service.append(**IDS, session_id=f"s{size}", event=event)


VALUES: Final[dict[str, Callable[[int], Any]]] = {
    "keys": lambda size: {f"k{number}": number for number in range(size)},
    "items": lambda size: {"k": [*range(size)]},
    "deep": lambda size: {"k": {f"k{number}": {"k": []} for number in range(size)}},
    **{
        name: lambda size, text=text: {"k": text * 8 * size}
        for name, text in TEXTS.items()
    },
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("call", [create, append])
@pytest.mark.parametrize("name", VALUES)
async def test_values(service: MongoSessionService, call: Any, name: str) -> None:
    """State and events of twice the size, written and read."""

    async def write_and_read(size: int) -> None:
        await call(service, VALUES[name](size), size)
        assert await service.get_session(**IDS, session_id=f"s{size}")

    await check_doubling(write_and_read, 12 * MANY, name)


ROUTES: Final[dict[str, Callable[[str], dict[str, Any]]]] = {
    f"GET {USER}/sessions": lambda it: {"params": {"label": it, "page_token": it}},
    f"GET {SESSION}": lambda it: {"params": {"at_revision": it}},
    f"GET {SESSION}x": lambda it: {"params": {"numRecentEvents": it}},
    f"GET {SESSION}/events": lambda it: {"params": {"after_revision": it}},
    f"GET {SESSION}/changes": lambda it: {"headers": {"Last-Event-ID": it}},
    f"PATCH {SESSION}": lambda it: {"json": {"title": it, "labels": {it: it}}},
    f"POST {SESSION}/fork": lambda it: {"json": {"newSessionId": it}},
    f"PUT {SESSION}/shown": lambda it: {"json": {"at": it}},
    f"POST {SESSION}/turns": lambda it: {"json": {"insteadOf": it, **QUESTION}},
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("route", ROUTES)
async def test_routes(service: MongoSessionService, route: str) -> None:
    """Each with every text, where it takes one: in the path, the query, the body."""
    agent = LlmAgent(name="agent", model=ScriptedModel(script=[]))
    runner = Runner(app_name="app", agent=agent, session_service=service)
    await service.create_session(**KEY)
    transport = httpx.ASGITransport(app_of(service, runner=runner))
    method, _, path = route.partition(" ")
    async with httpx.AsyncClient(transport=transport, base_url="http://h") as client:
        for text in TEXTS.values():

            async def call(size: int) -> None:
                longest = size // 10 if method == "GET" else size
                parts = ROUTES[route](repeat(text, longest))  # noqa: B023
                await outcome(lambda: client.request(method, path, **parts))

            await check_doubling(call, LENGTH, repr(text), ends=False)


COMMANDS: Final = {
    "show": ["show", "app", "user", "{}"],
    "sessions": ["sessions", "{}"],
    "set": ["set", "app", "user", "s", "--title", "{}"],
    "label": ["sessions", "app", "--label", "{}"],
    "trim": ["trim", "app", "user", "s", "--older-than", "{}"],
    "import": ["import", "{}", "--dry-run"],
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", COMMANDS)
async def test_commands(mongodb_uri: str, database: str, name: str) -> None:
    """Each as one that is typed."""
    uri = mongodb_uri.replace("/?", f"/{database}?")
    for text in TEXTS.values():

        async def call(size: int) -> None:
            typed = repeat(text, size)  # noqa: B023
            arguments = [each.replace("{}", typed) for each in COMMANDS[name]]
            cli_runner.call(*arguments, MONGODB_URI=uri)

        await check_doubling(call, LENGTH, repr(text))
