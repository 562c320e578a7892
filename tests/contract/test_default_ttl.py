"""The time to live of sessions that say nothing about it themselves."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from google.adk.events import Event
from support.fake_clock import Clock

from mongo_session_service import MongoSessionService

OF_USER = {"app_name": "app", "user_id": "ada"}
SESSION = {**OF_USER, "session_id": "s"}


async def ids(service: MongoSessionService) -> list[str]:
    listed = await service.list_sessions(**OF_USER)
    return sorted(each.id for each in listed.sessions)


async def test_a_default_applies_where_no_time_to_live_is_given(
    brief: MongoSessionService,
) -> None:
    """A time to live, an end, or never are each kept; all others get the default."""
    clock = Clock.set()
    end = datetime.fromtimestamp(clock.now + 300, UTC)
    for name, given in (
        ("default", {}),
        ("shorter", {"ttl": 10}),
        ("end", {"expire_time": end}),
        ("never", {"ttl": math.inf}),
    ):
        await brief.create_session(**OF_USER, session_id=name, **given)

    left = []
    for seconds in (10, 100, 300):
        clock.now = end.timestamp() - 300 + seconds
        left.append(await ids(brief))

    assert left == [["default", "end", "never"], ["end", "never"], ["never"]]


async def test_an_update_to_never_stays(brief: MongoSessionService) -> None:
    """None and infinity end it for good: no later append brings it back."""
    clock = Clock.set()
    for name, never in (("none", None), ("infinity", math.inf)):
        session = await brief.create_session(**OF_USER, session_id=name)
        shown = await brief.update_session(**OF_USER, session_id=name, ttl=never)
        assert (shown.ttl, shown.expire_time) == (None, None)
        await brief.append_event(session, Event(author="x"))

    clock.now += 1e6

    assert await ids(brief) == ["infinity", "none"]


async def test_a_fork_keeps_the_time_to_live_of_its_source(
    brief: MongoSessionService,
) -> None:
    """A copy of a session that never ends does not end either."""
    clock = Clock.set()
    await brief.create_session(**SESSION, ttl=math.inf)
    fork = await brief.fork_session(**SESSION, new_session_id="fork")

    clock.now += 1e6

    assert await ids(brief) == [fork.id, "s"]
