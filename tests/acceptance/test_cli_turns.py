"""Turns in a terminal: ``sessions --running``, and what ``show`` prints of the last."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.genai import types
from pymongo import MongoClient
from support.abandoned_turns import abandon_turn
from support.cli_runner import call, run
from support.one_session import IDS
from support.spoken_model import SpokenModel

from mongo_session_service import MongoSessionService, RunningTurn

BOB = {"app_name": "shop", "user_id": "bob", "session_id": "\x1b[2J"}


@pytest.fixture
async def running(service: MongoSessionService) -> RunningTurn:
    """A turn of Bob, whose model is silent."""
    await service.create_session(**BOB)
    agent = LlmAgent(name="agent", model=SpokenModel())
    runner = Runner(agent=agent, app_name="shop", session_service=service)
    return await service.start_turn(
        runner,
        user_id="bob",
        session_id=BOB["session_id"],
        new_message=types.UserContent("Hello?"),
    )


def listed(*arguments: str) -> list[dict[str, Any]]:
    """The turns that it lists as JSON."""
    done = call("sessions", "--running", "--json", *arguments)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
async def test_running_turns_are_listed(
    service: MongoSessionService,
    at: tuple[str, ...],
    running: RunningTurn,
    database: str,
    admin: MongoClient[Any],
) -> None:
    """Of every process, also abandoned ones; by app and user, until they end."""
    await service.create_session(**IDS)
    await abandon_turn(service, database, admin)

    table = await asyncio.to_thread(run, "sessions", "--running", *at)
    both, (bobs,) = listed(*at), listed(*at, "--app", "shop", "--user", "bob")
    await service.stop_turn(**BOB, reason="too expensive")
    await running.wait_end()
    ended = listed(*at, "--app", "shop")

    assert [line.split()[:4] for line in table.stdout.splitlines()] == [
        ["SESSION", "USER", "APP", "STATUS"],
        ["s", "user", "app", "abandoned"],
        [r"\x1b[2J", "bob", "shop", "running"],
    ]
    assert [each["status"] for each in both] == ["abandoned", "running"]
    assert {name: bobs[name] for name in BOB} == BOB
    assert (bobs["epoch"], bobs["status"]) == (1, "running")
    assert datetime.fromisoformat(bobs["since"]).tzinfo is not None
    assert ended == []


@pytest.mark.limits(lease_seconds=0.5, lease_renewal_seconds=0.1)
async def test_a_session_is_shown_with_the_end_of_its_last_turn(
    service: MongoSessionService,
    at: tuple[str, ...],
    database: str,
    admin: MongoClient[Any],
) -> None:
    """One that was cut off, before it is repaired and afterwards."""
    await service.create_session(**IDS)
    await abandon_turn(service, database, admin)
    before = call("show", *IDS.values(), *at)
    agent = LlmAgent(name="agent", model=SpokenModel())
    runner = Runner(agent=agent, app_name=IDS["app_name"], session_service=service)
    recovering = asyncio.create_task(service.recover_turns(runner))
    while await service.find_turns():
        assert not recovering.done()
    recovering.cancel()
    after = call("show", *IDS.values(), *at)

    assert before.returncode == after.returncode == 0
    assert "\nLast turn: cut off\n" in before.stdout
    ends = "The turn was cut off: its process has ended."
    assert f"error INVOCATION_ABORTED: {ends}" in after.stdout
    assert "\nLast turn: cut off: its process died\n" in after.stdout
