"""Turns whose process has died, as whoever looks later sees them."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from google.adk.agents import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.events import Event
from google.adk.runners import Runner
from google.genai import types
from pymongo import MongoClient
from support.abandoned_turns import abandon_turn
from support.conversations import STREAMED
from support.http_paths import SESSION, app_of
from support.one_session import IDS, read
from support.scripted_model import ScriptedModel, said, texts_of

from mongo_session_service import Change, MongoSessionService, Subject

pytestmark = pytest.mark.limits(
    recovery_seconds=0.05, lease_seconds=0.5, lease_renewal_seconds=0.1
)

QUESTION = Event(author="user", invocation_id="died", content=said("What time is it?"))
ANSWER = Event(
    author="agent",
    invocation_id="died",
    content=types.ModelContent("It is late."),
)


@pytest.fixture
def runner(service: MongoSessionService) -> Runner:
    agent = LlmAgent(name="agent", model=ScriptedModel(script=["It is late."]))
    resumable = ResumabilityConfig(is_resumable=True)
    app = App(name="app", root_agent=agent, resumability_config=resumable)
    return Runner(app=app, session_service=service)


async def abandon_after(
    event: Event, service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    await service.create_session(**IDS)
    copied = event.model_copy(deep=True)
    await abandon_turn(service, database, admin, copied)


async def begin_next(service: MongoSessionService, runner: Runner) -> None:
    user = {"user_id": IDS["user_id"], "session_id": IDS["session_id"]}
    running = await service.start_turn(runner, **user, new_message=said("Hello?"))
    await running.result()


async def recover(
    service: MongoSessionService, runner: Runner, *, resume: bool = False
) -> None:
    recovering = asyncio.create_task(
        service.recover_turns(runner, resume=resume, run_config=STREAMED)
    )
    while await service.find_turns():
        assert not recovering.done()
    recovering.cancel()


async def resume(service: MongoSessionService, runner: Runner) -> None:
    await recover(service, runner, resume=True)


async def asked(service: MongoSessionService, path: str) -> Any:
    transport = httpx.ASGITransport(app_of(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        return (await http.get(f"{SESSION}{path}")).json()


async def first_turn(service: MongoSessionService, **how: Any) -> Change | None:
    """The ``turn`` that a subscription begins with, before anything else happens."""
    async with service.watch(*IDS.values(), partials=True, **how) as changes:
        later = await service.append(**IDS, event=Event(author="later"))
        async for change in changes:
            if change.kind == "turn":
                return change
            if change.event is not None and change.event.id == later.id:
                break
    return None


@pytest.mark.parametrize("repair", [begin_next, recover, resume])
async def test_an_answer_that_is_missing_is_marked_where_it_was_to_be(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    runner: Runner,
    repair: Any,
) -> None:
    """For good, in the log that all read, whoever repairs the turn."""
    await abandon_after(QUESTION, service, database, admin)
    await repair(service, runner)

    question, mark, *later = (await read(service)).events
    assert texts_of(question.content) == ["What time is it?"]
    assert (mark.author, mark.invocation_id) == ("agent", "died")
    assert mark.error_code == "INVOCATION_ABORTED"
    assert mark.error_message == "The turn was cut off: its process has ended."
    assert mark.custom_metadata == {"stop_reason": "its process died"}
    assert not [each for each in later if each.error_code]
    if repair is resume:
        assert [texts_of(each.content) for each in later if each.content] == [
            ["It is late."]
        ]
        assert {each.invocation_id for each in later} == {"died"}
        assert runner.agent.model.is_streaming  # type: ignore[union-attr]
        (session,) = admin[database].sessions.find()
        assert session["turn"].keys() == {"epoch", "ended"}
    shown = await asked(service, "")
    assert "cut off" in shown["events"][1]["errorMessage"]


@pytest.mark.parametrize("repair", [begin_next, recover])
async def test_a_turn_that_had_answered_is_not_marked(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    runner: Runner,
    repair: Any,
) -> None:
    """Its process died after all that was to be said."""
    await abandon_after(ANSWER, service, database, admin)
    await repair(service, runner)
    assert not [each for each in (await read(service)).events if each.error_code]


async def test_a_turn_that_nobody_has_repaired_is_seen_to_be_cut_off(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """By a request, and where any subscription to the session begins."""
    await abandon_after(QUESTION, service, database, admin)

    assert (await asked(service, "/turn"))["status"] == "abandoned"
    for how in ({}, {"after_revision": 0}, {"after_revision": 1}):
        change = await first_turn(service, **how)
        assert change is not None
        assert change.turn is not None
        assert change.turn.status == "abandoned"
        assert change.turn.is_cut_off
        assert change.turn_position is None


async def test_the_end_of_the_last_turn_is_known_to_who_comes_later(
    service: MongoSessionService, database: str, admin: MongoClient[Any], runner: Runner
) -> None:
    """One that was repaired has failed; of one that has ended well nothing is told."""
    await abandon_after(QUESTION, service, database, admin)
    await recover(service, runner)
    change = await first_turn(service)
    assert change is not None
    assert change.turn is not None
    assert (change.turn.status, change.turn.reason) == ("failed", "its process died")
    assert change.turn.is_cut_off
    assert (await asked(service, "/turn"))["reason"] == "its process died"

    await begin_next(service, runner)
    assert await first_turn(service) is None
    assert (await asked(service, "/turn"))["status"] == "ended"


async def test_a_session_without_a_turn_has_none_to_show(
    service: MongoSessionService,
) -> None:
    """That is not an error of the server."""
    await service.create_session(**IDS)
    assert (await asked(service, "/turn"))["status"] == 404
    assert await first_turn(service) is None


async def test_a_repair_that_comes_late_leaves_the_next_turn_alone(
    mongodb_uri: str, database: str, admin: MongoClient[Any]
) -> None:
    """Of a process that was paused in it: the next turn may be cut off as well."""
    of_next = {"turn.epoch": 9, "turn.holder.token": "next", "turn.first_revision": 5}
    reads = list[Subject]()

    def take_over(value: Any, subject: Subject) -> Any:
        if not reads:  # the first, in which the repair looks what is open
            admin[database].sessions.update_one({}, {"$set": of_next})
        reads.append(subject)
        return value

    async with MongoSessionService(
        mongodb_uri, database=database, after_load=take_over
    ) as paused:
        await abandon_after(ANSWER, paused, database, admin)
        reads.clear()
        async with paused.turn(**IDS):
            pass
    (session,) = admin[database].sessions.find()
    assert session["turn"]["first_revision"] == 5
