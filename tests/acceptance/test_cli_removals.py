"""What removes something counts, asks, acts and tells, in each command alike."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

import pytest
from google.adk.events import Event
from google.genai import types
from pymongo import MongoClient
from support.cli_runner import call
from support.fake_clock import Clock
from support.forked_processes import CTRL_C, on_a_terminal
from support.one_session import IDS

from mongo_session_service import MongoSessionService

WHO = tuple(IDS.values())


class Removal(NamedTuple):
    """A command, and what it prints and counts, about the session of `stored`."""

    command: tuple[str, ...]
    plan: str
    would: str
    done: str
    counts: dict[str, Any]
    asks_scripts: bool = False
    """True if it has to be told ``--yes`` where nobody can be asked."""


ERASED = dict.fromkeys(("user_states", "app_states", "dead_letters", "checkpoints"), 0)
REMOVALS = [
    Removal(
        ("trim", "app", "--older-than", "90d"),
        "This removes 2 events from 1 of 1 session in ",
        "Would remove 2 events from 1 of 1 session in ",
        "Removed 2 events from 1 of 1 session in ",
        {"sessions": 1, "trimmed": 1, "events": 2},
    ),
    Removal(
        ("prune", "--idle-for", "90d"),
        "This removes 1 session, 2 events in ",
        "Would remove 1 session and 2 events in ",
        "Removed 1 session and 2 events in ",
        {"sessions": 1, "events": 2},
    ),
    Removal(
        ("redact", *WHO, "--invocation", "i"),
        "This redacts 2 events of session app/user/s in ",
        "Would redact 2 events.",
        "Redacted 2 events.",
        {"events": 2, "state_keys": []},
    ),
    Removal(
        ("erase", *WHO),
        "This erases session app/user/s in ",
        "Would erase 1 session, 2 events: session app/user/s in ",
        "Erased 1 session, 2 events.",
        {"sessions": 1, "events": 2, **ERASED},
        asks_scripts=True,
    ),
    Removal(
        ("consumers", "remove", "billing"),
        "This removes the checkpoint and 0 dead letters of billing in ",
        "Would remove the checkpoint and 0 dead letters of billing in ",
        "Removed the checkpoint and 0 dead letters of billing in ",
        {"name": "billing", "dead_letters": 0},
        asks_scripts=True,
    ),
    Removal(
        ("consumers", "reset", "billing", "--to", "beginning"),
        "Then billing in ",
        "reads the whole log again: 2 events.",
        "From now on billing in ",
        {"name": "billing", "to": "beginning", "events": 2},
        asks_scripts=True,
    ),
]


@pytest.fixture
async def at(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> tuple[str, ...]:
    """The options that name a database with a consumer, and a session of long ago."""
    await service.consumer("billing").run(print, until_caught_up=True)
    Clock.set().now = 1e9
    session = await service.create_session(**IDS)
    for text in "ab":
        said = types.UserContent(text)
        event = Event(author="x", invocation_id="i", content=said)
        await service.append_event(session, event)
    return ("--uri", mongodb_uri, "--database", database)


def stored(admin: MongoClient[Any], database: str) -> dict[str, list[Any]]:
    names = ("sessions", "events", "checkpoints")
    return {name: [*admin[database][name].find()] for name in names}


@pytest.mark.parametrize("of", REMOVALS, ids=lambda of: " ".join(of.command[:2]))
async def test_nothing_goes_without_a_yes(
    at: tuple[str, ...], admin: MongoClient[Any], database: str, of: Removal
) -> None:
    """At a terminal it asks; a dry run counts; only some need ``--yes`` in scripts."""
    before = stored(admin, database)
    tried = call(*of.command, "--dry-run", *at)
    counted = call(*of.command, "--dry-run", "--json", *at)
    code, said = await asyncio.to_thread(on_a_terminal, *of.command, *at, answer="n")
    mute = call(*of.command, *at) if of.asks_scripts else None
    kept = stored(admin, database)
    agreed = await asyncio.to_thread(on_a_terminal, *of.command, *at, "--yes")

    assert kept == before
    assert of.would in tried.stderr
    assert json.loads(counted.stdout) == of.counts
    assert (code, of.plan in said) == (1, True)
    assert said.rstrip().endswith("Error: Nothing was done.")
    if mute is not None:
        assert mute.returncode == 2
        assert mute.stderr.startswith(of.plan)
        assert "Nothing was done, as there is no terminal: add --yes." in mute.stderr
    assert (agreed[0], "Do it?" in agreed[1], of.done in agreed[1]) == (0, False, True)
    assert stored(admin, database) != before


async def test_an_answer_can_be_ctrl_c(
    at: tuple[str, ...], admin: MongoClient[Any], database: str
) -> None:
    """It ends the command at once; a yes has it act."""
    erasing = ("erase", *WHO, *at)
    before = stored(admin, database)
    interrupted, _ = await asyncio.to_thread(on_a_terminal, *erasing, answer=CTRL_C)
    kept = stored(admin, database)
    code, said = await asyncio.to_thread(on_a_terminal, *erasing, answer="y")

    assert (interrupted, kept) == (130, before)
    assert (code, "Erased 1 session, 2 events." in said) == (0, True)
