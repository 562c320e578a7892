"""What a session began with, on its way out and in again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions import InMemorySessionService
from support.sample_data import fill
from support.transfers import (
    IDS,
    compared,
    differences,
    exported,
    imported,
    moved,
    say,
)

from mongo_session_service import MongoSessionService

LARGE = "x" * 10_000
"""Enough for an initial state to have a document of its own."""
CITY = "Turin"
BEGINNINGS: dict[str, dict[str, Any]] = {
    "small": {"kept": 1, "k": CITY},
    "large": {"kept": LARGE, "k": CITY},
    "empty": {},
    "odd": {"kept": float("nan"), "k": 2**70, "a.b": "\ud83d", "": {"$set": 1}},
}
"""By session id."""


def ids(session_id: str) -> dict[str, str]:
    return {**IDS, "session_id": session_id}


async def turn(service: Any, session_id: str, name: str, **delta: Any) -> None:
    session = await service.get_session(**ids(session_id))
    actions = EventActions(state_delta=delta)
    event = Event(author="agent", invocation_id=name, actions=actions)
    await service.append_event(session, event)


@pytest.fixture
async def filled(service: MongoSessionService) -> MongoSessionService:
    for session_id, state in BEGINNINGS.items():
        await service.create_session(**ids(session_id), state=state)
        await turn(service, session_id, "first", k="Lisbon", new=1)
        await turn(service, session_id, "second", kept=2)
    return service


@pytest.fixture(params=[1000, 1])
def whole_and_in_parts(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Has so many events written together."""
    module = "mongo_session_service.transfer.batches"
    monkeypatch.setattr(f"{module}.MAX_EVENTS", request.param)


async def beginning(service: MongoSessionService, session_id: str) -> dict[str, Any]:
    past = await service.get_session_at(**ids(session_id), revision=0)
    assert past is not None
    return past.state


@pytest.mark.usefixtures("whole_and_in_parts")
async def test_a_beginning_goes_out_and_in_without_loss(
    filled: MongoSessionService,
    copy: MongoSessionService,
    tmp_path: Path,
) -> None:
    """The copy's export has the same bytes, and its sessions the same past.

    So do those that come in parts.
    """
    first = await exported(filled, tmp_path / "first.jsonl")
    result = await imported(tmp_path / "first.jsonl", copy)
    again = await imported(tmp_path / "first.jsonl", copy)

    assert (result.new, again.unchanged) == (len(BEGINNINGS), len(BEGINNINGS))
    assert await exported(copy, tmp_path / "second.jsonl") == first
    assert await compared(filled, copy) == []
    for session_id in BEGINNINGS:
        was, there = [
            sorted((await beginning(each, session_id)).items())
            for each in (filled, copy)
        ]
        assert repr(there) == repr(was)


async def test_an_export_that_lacks_beginnings_is_imported(
    filled: MongoSessionService, copy: MongoSessionService, tmp_path: Path
) -> None:
    """Of an earlier release's file, a session began with what no event has set."""
    path = tmp_path / "x.jsonl"
    text = (await exported(filled, path)).decode()
    lacking = re.sub(r'"initial_state": {.*}, "state"', '"state"', text)
    path.write_text(lacking)
    assert "initial_state" in text
    assert "initial_state" not in lacking

    result = await imported(path, copy)
    again = await imported(path, copy)

    assert (result.new, again.unchanged) == (len(BEGINNINGS), len(BEGINNINGS))
    assert (await beginning(copy, "small")) == {}
    assert set(await beginning(copy, "odd")) == {"a.b", ""}


@pytest.mark.parametrize("kept", ["small", LARGE])
async def test_the_initial_state_from_another_store_is_what_no_event_has_set(
    service: MongoSessionService, kept: str
) -> None:
    """They do not keep it; and what was known of it stays, whatever is set later."""
    old = InMemorySessionService()
    await fill(old)
    session = await old.create_session(**ids("x"), state={"k": 1, "kept": kept})
    await old.append_event(
        session, Event(author="x", actions=EventActions(state_delta={"k": 2}))
    )
    await moved(old, service)
    began = await beginning(service, "x")
    assert {key: began[key] for key in began if ":" not in key} == {"kept": kept}

    await turn(old, "x", "later", kept="later")
    await say(old, "more")
    result, _ = await moved(old, service)

    assert result.caught_up == 2
    assert await beginning(service, "x") == began
    assert await differences(old, service) == []
