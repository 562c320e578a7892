"""Lists by update time, and exports, go by when something was written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event
from support.transfers import compared, exported, imported

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import JsonLinesSource, Selection, move

OWNER: dict[str, Any] = {"app_name": "app", "user_id": "user"}
DATES = [1.0, time.time() - 30, time.time() + 86_400]
"""Of an event whose client made it up, waited, or has a wrong clock."""


async def order(service: MongoSessionService) -> list[str]:
    page = await service.find_sessions(**OWNER, order_by="update_time")
    return [each.id for each in page.sessions]


@pytest.mark.parametrize("date", DATES, ids=["first", "late", "future"])
async def test_the_date_of_an_event_moves_no_session(
    service: MongoSessionService, mongodb_uri: str, database: str, date: float
) -> None:
    """The last that was written to comes first; ``last_update_time`` is the event's."""
    for name in ("a", "b"):
        await service.create_session(**OWNER, session_id=name)
    await service.append(
        **OWNER, session_id="a", event=Event(id="e", author="x", timestamp=date)
    )
    assert await order(service) == ["a", "b"]
    session = await service.get_session(**OWNER, session_id="a")
    assert session is not None
    assert session.last_update_time == date
    await service.append(**OWNER, session_id="b", event=Event(id="f", author="x"))
    assert await order(service) == ["b", "a"]
    async with MongoSessionService(mongodb_uri, database=database) as other:
        page = await other.find_sessions(**OWNER)
    (of_a,) = (each for each in page.sessions if each.id == "a")
    assert of_a.last_update_time == date


async def test_an_incremental_export_has_what_was_written(
    service: MongoSessionService, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """Also an event that is dated back; and so has what a file is asked for."""
    await service.create_session(**OWNER, session_id="a")
    since = Selection(since=time.time() - 60)  # by the server's clock, about
    event = Event(id="e", author="x", timestamp=1.0)
    await service.append(**OWNER, session_id="a", event=event)

    assert b'"e"' in await exported(service, tmp_path / "a.jsonl", since)

    place: dict[str, Any] = {"database": database, "collection_prefix": "copy_"}
    async with MongoSessionService(mongodb_uri, **place) as copy:
        async with JsonLinesSource(tmp_path / "a.jsonl") as source:
            assert (await move(source, copy, since)).events == 1
        assert await compared(service, copy) == []
        event = Event(id="f", author="x", timestamp=2.0)
        await service.append(**OWNER, session_id="a", event=event)
        await exported(service, tmp_path / "b.jsonl")
        assert (await imported(tmp_path / "b.jsonl", copy)).caught_up == 1
        assert await compared(service, copy) == []
        session = await copy.get_session(**OWNER, session_id="a")
        assert session is not None
        assert session.last_update_time == 2.0
