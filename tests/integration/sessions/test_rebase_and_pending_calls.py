"""Late events that meet each other, or whose outcome nobody knows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from pymongo import MongoClient
from support.failpoints import failing
from support.function_calls import called, responded
from support.one_session import IDS, authors, read
from support.subscriptions import new_event

from mongo_session_service import MongoSessionService, UnknownOutcomeError


async def test_two_appends_that_wait_for_other_calls_end_in_time(
    impatient: MongoSessionService,
) -> None:
    """Each waits in vain for another call, and both are refused."""
    crashed = await impatient.create_session(**IDS)
    mine = await read(impatient)
    await impatient.append_event(crashed, called("a", turn="one"))
    answering = await read(impatient)
    await impatient.append_event(crashed, called("b", turn="other"))

    async with asyncio.timeout(60):
        refused = await asyncio.gather(
            impatient.append_event(mine, new_event()),
            impatient.append_event(answering, responded("a", turn="one")),
            return_exceptions=True,
        )

    assert [type(each) for each in refused] == [StaleSessionError] * 2


async def test_a_late_event_of_unknown_outcome_is_shown_in_its_place(
    second: MongoSessionService, admin: MongoClient[Any]
) -> None:
    """Tried again, it is found among what was missed, before and after it."""
    theirs = await second.create_session(**IDS)
    mine = await read(second)
    await second.append_event(theirs, new_event("before", k=1))
    event = new_event("me", k=2, **{"temp:seen": 1})
    unsure = {"writeConcernError": {"code": 100, "errmsg": "not enough members"}}
    # The first is of the transaction that tells that the session has moved on.
    with (
        failing(admin, "commitTransaction", skip=1, **unsure),
        pytest.raises(UnknownOutcomeError),
    ):
        await second.append_event(mine, event)
    assert mine.events == []
    await second.append_event(theirs, new_event("after", k=3))

    await second.append_event(mine, event)

    assert authors(mine) == ["before", "me", "after"]
    assert mine.events[1] is event
    stored = await read(second)
    assert mine.events == stored.events
    assert mine.last_update_time == stored.last_update_time
    assert mine.state == {**stored.state, "temp:seen": 1} == {"k": 3, "temp:seen": 1}
    await second.append_event(mine, new_event("last"))
    assert mine.events == (await read(second)).events
