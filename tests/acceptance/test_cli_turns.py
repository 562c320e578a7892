"""The commands ``turns`` and ``turns stop``: what runs anywhere, and its stop."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from typing import Any, get_args

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
from mongo_session_service.cli.follow_commands import STYLES
from mongo_session_service.model.results import TurnPhase

BOB = {"app_name": "shop", "user_id": "bob", "session_id": "\x1b[2J"}


@pytest.fixture
def at(mongodb_uri: str, database: str) -> tuple[str, ...]:
    """The options that name the database."""
    return ("--uri", mongodb_uri, "--database", database)


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


def listed(*arguments: str) -> list[tuple[str, str, str, str]]:
    """The sessions and statuses of the turns that it lists as JSON."""
    lines = map(json.loads, call("turns", "--json", *arguments).stdout.splitlines())
    return [(*(each[name] for name in IDS), each["status"]) for each in lines]  # type: ignore[misc]


async def test_turns_are_listed_and_stopped(
    service: MongoSessionService,
    at: tuple[str, ...],
    running: RunningTurn,
    database: str,
    admin: MongoClient[Any],
) -> None:
    """By app, user and status; another process runs the turn that the command stops."""
    await service.create_session(**IDS)
    await abandon_turn(service, database, admin)
    ada, bob = tuple(IDS.values()), tuple(BOB.values())

    table = await asyncio.to_thread(run, "turns", *at)
    assert [line.split()[:4] for line in table.stdout.splitlines()] == [
        ["SESSION", "USER", "APP", "STATUS"],
        ["s", "user", "app", "abandoned"],
        [r"\x1b[2J", "bob", "shop", "running"],
    ]
    assert listed(*at) == [(*ada, "abandoned"), (*bob, "running")]
    assert listed(*at, "--app", "shop", "--user", "bob") == [(*bob, "running")]
    assert listed(*at, "--status", "abandoned") == [(*ada, "abandoned")]
    assert listed(*at, "--app", "shop", "--status", "abandoned") == []

    stop = ("turns", "stop", *bob, "--reason", "too expensive", *at)
    stopped = await asyncio.to_thread(run, *stop)
    assert (stopped.returncode, stopped.stdout) == (0, "")
    assert stopped.stderr == "The turn of session \\x1b[2J is stopping.\n"
    await running.wait_end()

    again = call(*stop, "--json")
    assert json.loads(again.stdout) == {**BOB, "was_running": False}
    over = call("turns", "--status", "stopped", "--json", *at)
    (turn,) = map(json.loads, over.stdout.splitlines())
    assert (turn["epoch"], turn["reason"]) == (1, "too expensive")
    assert datetime.fromisoformat(turn["since"]).tzinfo is not None
    assert "too expensive" in call("turns", "--status", "stopped", *at).stdout


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


def test_every_status_can_be_asked_for() -> None:
    """The option has all that a turn can have, with a style of its own."""
    assert set(STYLES) == set(get_args(TurnPhase))


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["turns"], 0, "There are no such turns in database "),
        (["turns", "--user", "ada"], 2, "--user needs --app."),
        (["turns", "--status", "lost"], 2, "'abandoned'"),
        (["turns", "stop", "app", "ada"], 2, "Missing argument 'SESSION'"),
        (["turns", "stop", "app", "ada", "s"], 1, "sessions --app app` lists them"),
    ],
)
def test_on_a_wrong_database_nothing_is_created(
    at: tuple[str, ...],
    admin: MongoClient[Any],
    database: str,
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    """Mistakes are explained, and there is nothing to list or to stop."""
    done = call(*arguments, *at)

    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr
    assert admin[database].list_collection_names() == []
