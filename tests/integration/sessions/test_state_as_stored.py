"""Plain state, which is shown as it is stored, beside state that is not."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.sessions.base_session_service import GetSessionConfig

from mongo_session_service import MongoSessionService

IDS = {"app_name": "app", "user_id": "ada"}
PLAIN: dict[str, Any] = {"notes": [{"text": "100 % sure", "tags": ["a"]}]}
ODD: dict[str, Any] = {"a.b": {"n": 2**70}, "": [1], "user:%": {"%json": "x"}}


async def states(service: MongoSessionService) -> dict[str, list[dict[str, Any]]]:
    """The state of each session, by every way of reading it."""
    listed = (await service.list_sessions(**IDS)).sessions
    found = (await service.find_sessions(**IDS)).sessions
    read = {
        each.id: [each.state, *(it.state or {} for it in found if it.id == each.id)]
        for each in listed
    }
    for id_, ways in read.items():
        for config in (None, GetSessionConfig(num_recent_events=0)):
            one = await service.get_session(**IDS, session_id=id_, config=config)
            assert one is not None
            ways.append(one.state)
    return read


@pytest.mark.parametrize("filling", ["", "x" * 400_000], ids=["small", "large"])
async def test_values_come_back_as_they_were_given(
    service: MongoSessionService, filling: str
) -> None:
    """In replies that are decoded as a whole, and in those that are not."""
    plain = {**PLAIN, "filling": filling}
    await service.create_session(**IDS, session_id="plain", state=plain)
    assert await states(service) == {"plain": [plain] * 4}

    await service.create_session(**IDS, session_id="odd", state=ODD)

    shared = {"user:%": {"%json": "x"}}
    assert await states(service) == {"plain": [plain | shared] * 4, "odd": [ODD] * 4}


async def test_nested_values_are_shared_by_no_two_sessions(
    service: MongoSessionService,
) -> None:
    """However often a session is read."""
    both = PLAIN | {"app:l": [0]}
    for id_ in ("one", "two"):
        await service.create_session(**IDS, session_id=id_, state=both)
    for ways in [*(await states(service)).values()]:
        for state in ways:
            state["notes"][0]["tags"].append("changed")
            state["app:l"].append(1)
            assert state["app:l"] == [0, 1]

    assert await states(service) == {"one": [both] * 4, "two": [both] * 4}
