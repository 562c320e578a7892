"""Watching a session whose log was trimmed."""

from __future__ import annotations

import pytest
from support.subscriptions import SESSION, new_event

from mongo_session_service import MongoSessionService, TrimmedError


async def fill(service: MongoSessionService) -> None:
    session = await service.create_session(**SESSION, state={"first": 1})
    for number in range(1, 11):
        await service.append_event(session, new_event(n=number, app_shared=number))


async def test_a_place_before_the_log_is_refused(service: MongoSessionService) -> None:
    """The error names where the log begins; from there on, all events come."""
    await fill(service)
    await service.trim_session(**SESSION, keep_last=3)

    with pytest.raises(TrimmedError, match="begins after revision 7") as caught:
        await service.watch(*SESSION.values(), after_revision=6).__aenter__()
    begins = caught.value.log_begins
    async with service.watch(*SESSION.values(), after_revision=begins) as changes:
        told = [await anext(changes) for _ in range(3)]

    assert [(each.kind, each.revision) for each in told] == [
        ("appended", revision) for revision in (8, 9, 10)
    ]


@pytest.mark.limits(page_events=2)
async def test_a_reader_that_is_behind_the_cut(service: MongoSessionService) -> None:
    """It is given the state as of the cut, and then what follows."""
    await fill(service)

    async with service.watch(*SESSION.values(), after_revision=0) as changes:
        told = [await anext(changes)]
        await service.trim_session(**SESSION, keep_last=3)
        told += [await anext(changes) for _ in range(5)]

    assert [(each.kind, each.revision) for each in told] == [
        ("appended", 1),
        ("appended", 2),
        ("snapshot", 7),
        ("appended", 8),
        ("appended", 9),
        ("appended", 10),
    ]
    assert told[2].state == {"first": 1, "n": 7, "app:shared": 10}
