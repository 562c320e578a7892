"""Turns that interrupt each other: the latest message is the one that is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from contextvars import Context
from typing import Any

import httpx
import pytest
from pymongo import MongoClient
from support.conversations import runner_of, start
from support.http_paths import SESSION, app_of
from support.http_server import serving
from support.one_session import IDS, read
from support.scripted_model import texts_of
from support.spoken_model import SpokenModel
from support.subscriptions import until
from support.waiters import in_line

from mongo_session_service import MongoSessionService, RunningTurn
from mongo_session_service.errors import TurnInterruptedError

CROWD = 50
WAIT = 60.0
PATIENCE = 0.75 * WAIT
"""Seconds in which all is over: less than any of them would wait."""

quick_stops = pytest.mark.limits(stop_poll_seconds=0.05, abort_seconds=0.05)


async def interrupt(
    service: MongoSessionService, model: SpokenModel, number: int
) -> RunningTurn | None:
    """A turn that interrupts; None if a later one came before it began."""
    try:
        return await start(service, model, str(number), interrupt=True, wait=WAIT)
    except TurnInterruptedError:
        return None


async def check_latest_wins(
    service: MongoSessionService,
    model: SpokenModel,
    outcomes: list[RunningTurn | None],
) -> None:
    """Only the last one goes on: it is answered, and the others have been stopped."""
    *overtaken, last = outcomes
    assert last is not None
    model.say("I see.")
    model.end_answer()
    await last.result()
    for each in overtaken:
        if each is not None:
            await each.result()
            info = each.turn.info
            assert (info.status, info.reason) == ("stopped", "another turn was started")
    events = (await read(service)).events
    answers = [each for each in events if "I see." in texts_of(each.content)]
    (question,) = (
        each
        for each in events
        if each.author == "user" and each.invocation_id == answers[0].invocation_id
    )
    assert texts_of(question.content) == [str(len(outcomes) - 1)]
    assert len(answers) == 1


@quick_stops
async def test_the_latest_of_many_wins(service: MongoSessionService) -> None:
    """In one process, over a turn that runs."""
    await service.create_session(**IDS)
    model = SpokenModel()
    async with asyncio.timeout(PATIENCE):
        running = await start(service, SpokenModel(), "before")
        outcomes = await asyncio.gather(
            *(interrupt(service, model, number) for number in range(CROWD))
        )
        await check_latest_wins(service, model, outcomes)
    assert running.turn.info.reason == "another turn was started"


@quick_stops
async def test_the_latest_of_many_services_wins(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient[Any],
) -> None:
    """In the order in which MongoDB has them; a caller of turn() waits for its turn."""
    await service.create_session(**IDS)
    model, order = SpokenModel(), list[str]()

    async def edit() -> None:
        async with others[0].turn(**IDS, wait=60):
            order.append("edited")

    async with AsyncExitStack() as closing, asyncio.timeout(PATIENCE):
        others = [
            await closing.enter_async_context(
                MongoSessionService(mongodb_uri, database=database)
            )
            for _ in range(3)
        ]
        calls: list[Coroutine[Any, Any, Any]] = [
            interrupt(others[number % 3], model, number) for number in range(9)
        ]
        calls.insert(5, edit())
        tasks = []
        async with service.turn(**IDS):
            for number, call in enumerate(calls):
                before = interrupter(admin, database)
                tasks.append(asyncio.create_task(call, context=Context()))
                if number != 5:
                    await until(lambda: interrupter(admin, database) != before)  # noqa: B023
        editing = tasks.pop(5)  # before the last one, or after its answer
        outcomes = await asyncio.gather(*tasks)
        assert outcomes[:-1] == [None] * 8
        await check_latest_wins(service, model, outcomes)
        await editing
        assert order == ["edited"]


def interrupter(admin: MongoClient[Any], database: str) -> str | None:
    """The latest caller who interrupts."""
    session = admin[database].sessions.find_one({})
    assert session is not None
    return session["turn"].get("interrupter")  # type: ignore[no-any-return]


@quick_stops
async def test_a_turn_that_comes_first_is_stopped_for_one_that_interrupts(
    service: MongoSessionService,
) -> None:
    """One that waited in line before it gets its turn, and is stopped as well."""
    await service.create_session(**IDS)
    model = SpokenModel()
    first = await start(service, SpokenModel(), "first")
    patient = asyncio.create_task(start(service, SpokenModel(), "patient"))
    await in_line(service, 1)
    async with asyncio.timeout(PATIENCE):
        last = await start(service, model, "0", interrupt=True)
        await check_latest_wins(service, model, [last])
    for each in (first, await patient):
        assert each.turn.info.reason == "another turn was started"


@quick_stops
async def test_the_latest_of_many_requests_wins(
    service: MongoSessionService,
) -> None:
    """Over HTTP each of the others is answered by 409, and why."""
    await service.create_session(**IDS)
    model = SpokenModel()
    app = app_of(service, runner=runner_of(service, model))
    unlimited = httpx.Limits(max_connections=None)
    async with (
        serving(app) as url,
        httpx.AsyncClient(trust_env=False, timeout=60, limits=unlimited) as http,
        asyncio.timeout(PATIENCE),
    ):

        async def ask(number: int) -> httpx.Response:
            message = {"role": "user", "parts": [{"text": str(number)}]}
            body = {"newMessage": message, "interrupt": True}
            own = {"Origin": url}
            return await http.post(f"{url}{SESSION}/turns", json=body, headers=own)

        async with service.turn(**IDS):
            asking = [asyncio.create_task(ask(number)) for number in range(CROWD)]
            # One of them is the latest so far.
            await until(lambda: sum(each.done() for each in asking) == CROWD - 1)
            last = asyncio.create_task(ask(CROWD))
            overtaken = await asyncio.gather(*asking)
        answer = await last
    assert {each.status_code for each in overtaken} == {409}
    assert all("A later start" in each.json()["detail"] for each in overtaken)
    assert answer.status_code == 202
    (running,) = await service.find_turns()
    assert running.epoch == answer.json()["epoch"]
    assert await service.stop_turn(**IDS)
