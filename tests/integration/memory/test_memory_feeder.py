"""Finished turns reach a memory service, which forgets deleted sessions."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.events import Event, EventActions
from google.adk.integrations.mongodb import MongoDbMemoryService
from google.adk.memory import BaseMemoryService, InMemoryMemoryService
from google.adk.runners import Runner
from google.genai import types
from support.consumers import APP, USER
from support.encryption_hooks import SEALED
from support.memory_services import (
    Batch,
    Sessions,
    Turns,
    append_all,
    called,
    feed,
    label,
    said,
)
from support.scripted_model import ScriptedModel, call
from support.waiting import answer, ask

from mongo_session_service import (
    InvalidInputError,
    MongoSessionService,
    MongoSessionServiceError,
)
from mongo_session_service.memory import remember

pytestmark = pytest.mark.limits(handler_retry_seconds=0.0)


@pytest.fixture(params=["in memory", "on MongoDB"])
async def memory(
    request: pytest.FixtureRequest, mongodb_uri: str, database: str
) -> AsyncIterator[BaseMemoryService]:
    """ADK's own memory services that can find memory by session."""
    if request.param == "in memory":
        yield InMemoryMemoryService()
        return
    service = MongoDbMemoryService(
        connection_string=mongodb_uri, database_name=database
    )
    yield service
    await service.close()


async def found(memory: BaseMemoryService, query: str) -> list[str]:
    """What a user's memory says about something."""
    answer = await memory.search_memory(app_name=APP, user_id=USER, query=query)
    return sorted(
        part.text or "" for each in answer.memories for part in each.content.parts or ()
    )


async def test_finished_turns_are_remembered_from_the_beginning(
    service: MongoSessionService, memory: BaseMemoryService
) -> None:
    """A turn stored long before is found, one without a response is not."""
    await append_all(
        service,
        said("user", "Lisbon is a city", "1"),
        said("agent", "Lisbon noted", "1"),
        said("user", "Lisbon again", "2"),
    )

    await feed(service, memory)
    assert await found(memory, "lisbon") == ["Lisbon is a city", "Lisbon noted"]

    await append_all(service, said("agent", "Lisbon still", "2"))
    await feed(service, memory)
    assert await found(memory, "again still") == ["Lisbon again", "Lisbon still"]


async def test_a_deleted_session_is_forgotten(
    service: MongoSessionService, memory: BaseMemoryService
) -> None:
    """Its memory is deleted with it, and that of other sessions is not."""
    for name in ("s", "t"):
        turn = said("user", f"Lisbon {name}", "1"), said("agent", f"noted {name}", "1")
        await append_all(service, *turn, session_id=name)
    await feed(service, memory)
    assert len(await found(memory, "lisbon noted")) == 4

    await service.delete_session(app_name=APP, user_id=USER, session_id="s")
    await feed(service, memory)

    assert await found(memory, "lisbon noted") == ["Lisbon t", "noted t"]


@pytest.mark.parametrize("hooks", [{}, SEALED], ids=["clear", "sealed"])
async def test_a_turn_of_a_runner_is_one_batch(
    mongodb_uri: str, database: str, hooks: Any
) -> None:
    """What ADK stores between message and final response arrives together, once."""

    def tool() -> str:
        """Do something."""
        return "done"

    model = ScriptedModel(script=[call("tool"), "It is done.", "Bye."])
    agent = LlmAgent(name="agent", model=model, tools=[tool])
    memory = Turns()
    async with MongoSessionService(mongodb_uri, database=database, **hooks) as service:
        runner = Runner(app_name=APP, agent=agent, session_service=service)
        session = await append_all(service)
        for text in ("Do it", "Thanks"):
            message = types.UserContent(text)
            async for _ in runner.run_async(
                user_id=USER, session_id=session.id, new_message=message
            ):
                pass
        await runner.close()
        await feed(service, memory)

    assert memory.batches == [
        ["Do it", "tool()", "tool()", "It is done."],
        ["Thanks", "Bye."],
    ]


async def test_state_set_by_callbacks_ends_no_turn(
    service: MongoSessionService,
) -> None:
    """It may come before the response."""
    memory = Turns()
    state = EventActions(state_delta={"n": 1})
    await append_all(
        service,
        said("user", "u", "1"),
        Event(author="agent", invocation_id="1", actions=state),
        said("agent", "a", "1"),
        said("user", "w", "2"),
        Event(author="agent", invocation_id="2", error_code="SAFETY"),
    )

    await feed(service, memory)

    assert memory.batches == [["u", "-", "a"], ["w", "-"]]


def expected(log: list[Event]) -> list[Batch]:
    """What a log makes due, told forwards."""
    batches: list[list[Event]] = []
    waiting: dict[str, list[Event]] = {}
    finished: set[str] = set()
    for event in log:
        turn, is_call = event.invocation_id, bool(event.get_function_calls())
        if event.author == "user" or (is_call and turn not in finished):
            finished.discard(turn)
            waiting.setdefault(turn, []).append(event)
        else:
            batches.append([*waiting.pop(turn, []), event])
            finished |= {turn} - {""}
    return [[label(each) for each in batch] for batch in batches]


async def test_each_event_is_remembered_once(
    service: MongoSessionService,
) -> None:
    """A log of interleaved turns makes due what a forward reading of it says."""
    chance = random.Random(20)  # noqa: S311  not for secrets
    log: list[Event] = []
    for number in range(100):
        turn, author = chance.choice(["", "1", "2", "3"]), chance.choice(["user", "a"])
        is_call = author == "a" and chance.random() < 0.5
        name = f"{turn}/{number}"
        log.append(called(turn, name) if is_call else said(author, name, turn))
    await append_all(service, *log)
    memory = Turns()

    await feed(service, memory)

    assert memory.batches == expected(log)


async def test_a_service_that_takes_sessions_gets_the_session(
    service: MongoSessionService,
) -> None:
    """Without ``add_events_to_memory`` each finished turn hands over the session."""
    memory = Sessions()
    await append_all(service, said("user", "u", "1"), said("agent", "a", "1"))
    await feed(service, memory)
    await append_all(service, said("user", "v", "2"))
    await feed(service, memory)
    await append_all(service, said("agent", "b", "2"))
    await feed(service, memory)

    assert memory.given == [("s", ["u", "a"]), ("s", ["u", "a", "v", "b"])]


async def test_a_memory_service_that_leaks_a_cancellation_has_failed(
    service: MongoSessionService,
) -> None:
    """As of an MCP client: the feeder goes on, and the turn can be repeated, whole."""

    class Leaking(Turns):
        async def add_events_to_memory(self, **given: Any) -> None:
            if label(given["events"][-1]) == "first":
                raise asyncio.CancelledError
            await super().add_events_to_memory(**given)

    memory = Leaking()
    await append_all(
        service,
        *(said("user", "u", "t1"), said("agent", "first", "t1")),
        said("agent", "2nd", "t2"),
    )
    await feed(service, memory, max_attempts=1)
    assert memory.batches == [["2nd"]]
    consumer = service.consumer("memory")
    [letter] = [each async for each in consumer.dead_letters()]
    assert letter.error == "CancelledError"
    again = Turns()
    assert await consumer.replay_dead_letters(remember(again)) == 1
    assert again.batches == [["u", "first"]]


@pytest.mark.parametrize("is_recreated", [False, True])
async def test_a_turn_of_a_deleted_session_is_left_out(
    service: MongoSessionService, *, is_recreated: bool
) -> None:
    """Its events are gone; a later session of the same id is none of its."""
    memory = Turns()
    memory.failures = 1
    await append_all(service, said("user", "u", "1"), said("agent", "a", "1"))
    await feed(service, memory, max_attempts=1)
    await service.delete_session(app_name=APP, user_id=USER, session_id="s")
    if is_recreated:
        await append_all(service, said("user", "v", "1"), said("user", "w", "1"))

    handled = await service.consumer("memory").replay_dead_letters(remember(memory))

    assert (handled, memory.batches) == (0, [])


async def test_a_late_deletion_keeps_the_memory_of_the_next_session(
    service: MongoSessionService,
) -> None:
    """When it is handled, a session of the same id may have been remembered."""
    memory = Turns()
    await append_all(service, said("user", "u", "1"), said("agent", "a", "1"))
    await feed(service, memory)
    await service.delete_session(app_name=APP, user_id=USER, session_id="s")
    memory.failures = 1
    await feed(service, memory, max_attempts=1)
    await append_all(service, said("user", "v", "1"), said("agent", "b", "1"))
    await feed(service, memory)
    assert memory.batches == [["u", "a"], ["v", "b"]]

    await service.consumer("memory").replay_dead_letters(remember(memory))

    assert memory.batches == [["v", "b"]]


async def test_a_service_that_cannot_forget_is_named_once(
    service: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning says that memory of deleted sessions stays."""
    for name in ("s", "t"):
        await append_all(service, session_id=name)
    await feed(service, Sessions())
    memory = Sessions()
    for name in ("s", "t"):
        await service.delete_session(app_name=APP, user_id=USER, session_id=name)

    with caplog.at_level(logging.WARNING):
        await feed(service, memory)

    warnings = [each for each in caplog.messages if "Sessions cannot find" in each]
    assert len(warnings) == 1


async def test_the_feeder_runs_only_in_a_consumer(service: MongoSessionService) -> None:
    """Called by hand it raises an error."""
    handler = remember(InMemoryMemoryService())
    session = await append_all(service, said("agent", "a"))
    async with service.watch(
        app_name=APP, user_id=USER, session_id=session.id
    ) as changes:
        change = await anext(aiter(changes))

    with pytest.raises(MongoSessionServiceError, match="give it to run"):
        await handler(change)


def test_only_memory_services_are_accepted() -> None:
    """A session service in its place is refused at once."""
    wrong: Any = "memory"
    with pytest.raises(InvalidInputError, match="BaseMemoryService, not str"):
        remember(wrong)


async def test_a_feeder_is_in_no_transaction(service: MongoSessionService) -> None:
    """What it writes is not MongoDB's to commit, so it is refused before it begins."""
    consumer = service.consumer("memory")
    feeder = remember(InMemoryMemoryService())

    with pytest.raises(InvalidInputError, match=r"handler\(change, txn\)"):
        await consumer.run(feeder, transactional=True)
    with pytest.raises(InvalidInputError, match="cannot be transactional"):
        await consumer.replay_dead_letters(feeder, transactional=True)


async def test_an_invocation_in_two_pieces_is_given_once(
    service: MongoSessionService,
) -> None:
    """What follows a person's answer is given without what came before the question."""
    memory = Turns()
    await append_all(
        service,
        *(said("user", "Ship it", "1"), ask("c1", turn="1")),
        *(said("user", "Hello?", "2"), said("agent", "Hello", "2")),
        *(answer("c1", turn="1"), said("agent", "Shipped", "1")),
    )
    await feed(service, memory)
    first, other = ["Ship it", "ship()"], ["Hello?", "Hello"]
    given = [events for _, events in memory.given]
    assert given == [first, other, ["ship()"], ["Shipped"]]
