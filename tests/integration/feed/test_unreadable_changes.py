"""Changes whose content cannot be decoded, and what follows them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.subscriptions import (
    APP,
    ID,
    IDS,
    SESSION,
    USER,
    Follower,
    new_event,
)

from mongo_session_service import Change, MongoSessionService, StorageError

BAD = "not-to-be-decoded"


def unless_bad(value: Any, _: object) -> Any:
    """A hook that fails on what has the bad text in it."""
    if BAD in repr(value):
        raise ValueError(value)
    return value


@pytest.fixture
async def reader(mongodb_uri: str, database: str) -> AsyncIterator[MongoSessionService]:
    """A service that cannot load everything that others store."""
    async with MongoSessionService(
        mongodb_uri,
        database=database,
        before_store=lambda value, _: value,
        after_load=unless_bad,
    ) as service:
        yield service


def authors(changes: list[Change]) -> list[str | None]:
    """Who wrote the events; None where there is no event."""
    return [
        each.event and each.event.author for each in changes if each.kind == "appended"
    ]


async def test_an_event_that_cannot_be_decoded_ends_no_stream(
    service: MongoSessionService,
    reader: MongoSessionService,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Everybody receives its revision without the event, live and from storage."""
    session = await service.create_session(**SESSION)
    async with (
        Follower(reader.watch(APP, USER, ID)) as follower,
        Follower(reader.watch(APP)) as broad,
    ):
        for author in ("x", BAD, "y"):
            await service.append_event(session, new_event(author))
        await follower.reached(3)
        await broad.until(lambda: len(broad.told) == 3)
        async with Follower(reader.watch(APP, USER, ID, after_revision=0)) as late:
            await late.reached(3)
        last = new_event("z")
        await service.append_event(session, last)
        await follower.reached(4)

    assert follower.told[-1].event == last
    assert authors(late.told) == authors(broad.told[:3]) == ["x", None, "y"]
    assert authors(follower.told) == ["x", None, "y", "z"]
    unreadable = late.told[1]
    assert unreadable.revision == 2
    assert unreadable.time == session.events[1].timestamp
    assert "ValueError for an event" in caplog.text
    assert BAD not in caplog.text


async def test_state_that_cannot_be_decoded_ends_no_stream(
    service: MongoSessionService, reader: MongoSessionService
) -> None:
    """A session is created without it; of an app or a user it is left out."""
    session = await service.create_session(**SESSION)
    async with (
        Follower(reader.watch(APP, USER, ID)) as follower,
        Follower(reader.watch()) as broad,
    ):
        await service.create_session(**IDS, session_id="t", state={"own": BAD})
        await service.create_session(**IDS, session_id="u", state={"app:a": BAD})
        await service.append_event(session, new_event())
        await follower.reached(1)
        await broad.until(lambda: "appended" in broad.kinds)
        async with Follower(reader.watch(APP, USER, ID, after_revision=0)) as late:
            await late.reached(1)
        with pytest.raises(StorageError, match="'app:a'"):
            async with reader.watch(APP, USER, ID):
                pass

    assert broad.kinds == ["created", "created", "appended"]
    assert [each.state_delta for each in broad.told] == [{}] * 3
    assert follower.kinds == ["snapshot", "appended"]
    assert late.kinds == ["appended"]
