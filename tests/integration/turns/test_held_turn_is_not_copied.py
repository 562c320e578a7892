"""A session whose turn is held: copies and checks take no notice of it."""

from __future__ import annotations

from pathlib import Path

from google.adk.events import Event
from pymongo import MongoClient
from support.one_session import IDS

from mongo_session_service import MongoSessionService
from mongo_session_service.admin import Status, examine
from mongo_session_service.transfer import (
    JsonLinesSource,
    StoreSource,
    export,
    move,
    verify,
)


async def test_a_turn_is_in_no_copy(
    service: MongoSessionService, admin: MongoClient, database: str, tmp_path: Path
) -> None:
    """Forks, exports and imports are without, and no check finds a difference."""
    session = await service.create_session(**IDS)
    await service.append_event(session, Event(author="x"))
    path = str(tmp_path / "sessions.jsonl")
    async with service.turn(**IDS):
        await service.fork_session(**IDS, new_session_id="fork")
        async with StoreSource(service) as stored:
            await export(stored, path)
            async with JsonLinesSource(path) as exported:
                assert (await verify(exported, stored, is_exact=True)).is_equal
        async with JsonLinesSource(path) as exported:
            assert (await move(exported, service)).unchanged == 2
        findings = [each async for each in examine(service)]
        held, fork = admin[database].sessions.find().sort("_id", -1)
    assert [each for each in findings if each.status is Status.FAILED] == []
    assert held["turn"]["epoch"] == 1
    own = {"turn", "event_time"}
    assert fork.keys() - {"forked_from", "copied_by"} == held.keys() - own
    assert "turn" not in Path(path).read_text()
