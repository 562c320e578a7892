"""Late events that meet each other, or whose outcome nobody knows."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from pymongo import MongoClient
from support.failpoints import failing
from support.function_calls import called, responded
from support.one_session import IDS, authors, read
from support.subscriptions import new_event

from mongo_session_service import MongoSessionService, UnknownOutcomeError


async def test_a_response_does_not_part_another_call_from_its_own(
    second: MongoSessionService,
) -> None:
    """It is refused, as any other event is, until that call has its response."""
    others = await second.create_session(**IDS)
    slow = called("a", turn="one")
    slow.timestamp -= 11
    await second.append_event(others, slow)
    answering = await read(second)
    await second.append_event(others, called("b", turn="other"))

    with pytest.raises(StaleSessionError, match="no response yet"):
        await second.append_event(answering, responded("a", turn="one"))
    await second.append_event(others, responded("b", turn="other"))
    await second.append_event(answering, responded("a", turn="one"))

    assert answering.events == (await read(second)).events


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
