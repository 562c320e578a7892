"""Forks that were exported and imported know what they were made of."""

from __future__ import annotations

from pathlib import Path

from support.consumers import append
from support.transfers import IDS, exported, imported

from mongo_session_service import MongoSessionService


async def test_a_redaction_reaches_imported_forks(
    service: MongoSessionService, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """The copy of a database has its forks by the same origins."""
    session = await service.create_session(**IDS)
    await append(service, session, 2)
    await service.fork_session(**IDS, new_session_id="t")
    await exported(service, tmp_path / "all.jsonl")
    event_ids = [session.events[0].id]

    async with MongoSessionService(
        mongodb_uri, database=database, collection_prefix="copy_"
    ) as copy:
        assert (await imported(tmp_path / "all.jsonl", copy)).new == 2
        done = await copy.redact_events(**IDS, event_ids=event_ids, forks=True)
        assert done == 2
