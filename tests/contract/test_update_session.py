"""Titles, labels, and the time that sessions live."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from support.fake_clock import Clock

from mongo_session_service import InvalidInputError, MongoSessionService

OF_USER = {"app_name": "app", "user_id": "ada"}
SESSION = {**OF_USER, "session_id": "s"}


async def ids(service: MongoSessionService) -> list[str]:
    listed = await service.list_sessions(**OF_USER)
    return [each.id for each in listed.sessions]


async def test_a_session_keeps_its_details(ours: MongoSessionService) -> None:
    """Title, labels and time to live stay through appends and other updates."""
    clock = Clock.set()
    labels = {"team": "blue", "$ne.x": "", "ä": "%"}
    session = await ours.create_session(
        **SESSION, state={"k": 1}, title="Weather", labels=labels, ttl=60
    )
    clock.now += 10
    await ours.append_event(session, Event(author="x"))

    updated = await ours.update_session(**SESSION, title="Wetter")

    assert updated.model_dump() == {
        **OF_USER,
        "id": "s",
        "title": "Wetter",
        "labels": labels,
        "state": None,
        "revision": 1,
        "log_begins": 0,
        "create_time": clock.now - 10,
        "last_update_time": session.last_update_time,
        "ttl": 60.0,
        "expire_time": clock.now + 60,
        "waiting": (),
        "waiting_more": 0,
        "root_id": None,
        "branches": 1,
    }


async def test_the_words_of_vertex_ai_are_known(ours: MongoSessionService) -> None:
    """A call written for its service sets the same time to live and the title."""
    clock = Clock.set()
    await ours.create_session(**SESSION, ttl="7200s", display_name="Trip")

    page = await ours.find_sessions(app_name="app", title="Trip")
    renewed = await ours.update_session(**SESSION, ttl="0.5s")

    assert [each.expire_time for each in page.sessions] == [clock.now + 7200]
    assert renewed.ttl == 0.5
    with pytest.raises(InvalidInputError, match="two names of one thing"):
        await ours.create_session(
            app_name="a", user_id="u", title="a", display_name="b"
        )


async def test_details_are_changed_one_by_one(ours: MongoSessionService) -> None:
    """None removes, a value replaces, and what is not given stays."""
    clock = Clock.set()
    await ours.create_session(**SESSION, title="T", labels={"a": "1", "b": "2"}, ttl=5)

    shown = [
        await ours.update_session(**SESSION, **change)
        for change in (
            {"title": None},
            {"labels": {"b": "3"}},
            {"ttl": timedelta(minutes=1)},
            {"labels": None, "ttl": None, "title": "New"},
            {"labels": {}},
        )
    ]

    assert [(each.title, each.labels, each.expire_time) for each in shown] == [
        (None, {"a": "1", "b": "2"}, clock.now + 5),
        (None, {"b": "3"}, clock.now + 5),
        (None, {"b": "3"}, clock.now + 60),
        ("New", {}, None),
        ("New", {}, None),
    ]


async def test_an_update_makes_no_session_stale(ours: MongoSessionService) -> None:
    """A session that was loaded before its details changed is appended to."""
    session = await ours.create_session(**SESSION, labels={"a": "1"})
    before = await ours.get_session(**SESSION)

    await ours.update_session(**SESSION, title="T", labels={"a": "2"}, ttl=100)

    after = await ours.get_session(**SESSION)
    assert before is not None
    assert after is not None
    after.state.pop("__session_metadata__", None)
    assert after.model_dump() == before.model_dump()
    await ours.append_event(session, Event(author="x"))


async def test_expired_is_gone(ours: MongoSessionService) -> None:
    """At its time a session is gone for every call; app and user state stay."""
    clock = Clock.behind(100)
    state = {"own": 1, "user:u": 1, "app:a": 1}
    session = await ours.create_session(**SESSION, state=state, ttl=1000)
    await ours.append_event(session, Event(author="x", invocation_id="i"))
    await ours.update_session(**SESSION, ttl=10)
    clock.now += 9.999
    assert await ids(ours) == ["s"]

    clock.now += 0.0011

    assert await ids(ours) == []
    assert await ours.get_session(**SESSION) is None
    assert await ours.get_session_at(**SESSION, revision=0) is None
    rewind = EventActions(rewind_before_invocation_id="i")
    for gone in (
        ours.append_event(session, Event(author="x")),
        ours.append_event(session.model_copy(), Event(author="x")),
        ours.append_event(session, Event(author="user", actions=rewind)),
        ours.update_session(**SESSION, ttl=None),
        ours.fork_session(**SESSION, new_session_id="fork"),
    ):
        with pytest.raises(SessionNotFoundError):
            await gone
    assert len(session.events) == 1
    assert session.state == state
    assert await ours.get_user_state(**OF_USER) == {"u": 1}
    other = await ours.create_session(**OF_USER, session_id="fork")
    assert other.state == {"user:u": 1, "app:a": 1}


async def test_appends_renew_the_time_to_live(ours: MongoSessionService) -> None:
    """Each append gives a session its whole time again."""
    clock = Clock.set()
    session = await ours.create_session(**SESSION, ttl=timedelta(seconds=10))
    for _ in range(3):
        clock.now += 9
        await ours.append_event(session, Event(author="x"))
    clock.now += 9
    loaded = await ours.get_session(**SESSION)
    assert loaded is not None
    await ours.append_event(loaded, Event(author="x"))

    clock.now += 9
    assert await ids(ours) == ["s"]
    clock.now += 1
    assert await ids(ours) == []


@pytest.mark.parametrize(("before", "after"), [(10, 100), (100, 10), (None, 10)])
async def test_appends_renew_a_time_to_live_that_was_changed_meanwhile(
    ours: MongoSessionService, before: float | None, after: float
) -> None:
    """Also through a Session that was loaded before."""
    clock = Clock.set()
    session = await ours.create_session(**SESSION, ttl=before)
    await ours.update_session(**SESSION, ttl=after)
    clock.now += 9

    events = [Event(id=f"e{number}", author="x") for number in range(3)]
    await asyncio.gather(*(ours.append_event(session, each) for each in events))

    assert session.events == events
    clock.now += after - 1
    found = await ours.get_session(**SESSION)
    assert found is not None
    assert found.events == events
    clock.now += 1
    assert await ids(ours) == []


async def test_appends_do_not_bring_back_a_removed_time_to_live(
    ours: MongoSessionService,
) -> None:
    """A session that is to stay does so, though older copies know of an end."""
    clock = Clock.set()
    session = await ours.create_session(**SESSION, ttl=10)
    await ours.update_session(**SESSION, ttl=None)

    await ours.append_event(session, Event(author="x"))
    clock.now += 1000

    assert await ids(ours) == ["s"]
    await ours.append_event(session, Event(author="x"))


async def test_an_end_may_be_put_in_place_of_another(
    ours: MongoSessionService,
) -> None:
    """A fixed end takes the place of a time to live, and the other way round."""
    clock = Clock.set()
    session = await ours.create_session(**SESSION, ttl=10)
    end = datetime.fromtimestamp(clock.now + 20, UTC)
    shown = await ours.update_session(**SESSION, expire_time=end)
    assert (shown.ttl, shown.expire_time) == (None, clock.now + 20)

    clock.now += 19
    await ours.append_event(session, Event(author="x"))
    shown = await ours.update_session(**SESSION, title="T")
    assert (shown.ttl, shown.expire_time) == (None, clock.now + 1)
    assert await ids(ours) == ["s"]
    shown = await ours.update_session(**SESSION, ttl=5)
    assert (shown.ttl, shown.expire_time) == (5, clock.now + 5)

    with pytest.raises(InvalidInputError, match="not both"):
        await ours.update_session(**SESSION, ttl=5, expire_time=end)
    clock.now += 4
    shown = await ours.update_session(**SESSION, expire_time=None)
    assert (shown.ttl, shown.expire_time) == (None, None)


async def test_a_stale_append_stays_one(ours: MongoSessionService) -> None:
    """A changed time to live does not let an append pass that storage is ahead of."""
    session = await ours.create_session(**SESSION, ttl=10)
    other = await ours.get_session(**SESSION)
    assert other is not None
    await ours.append_event(other, Event(author="x"))
    await ours.update_session(**SESSION, ttl=20)

    with pytest.raises(ValueError, match="modified in storage"):
        await ours.append_event(session, Event(author="y"))


async def test_an_expired_id_is_free(ours: MongoSessionService) -> None:
    """A new session may have an expired one's id, and nothing of its content."""
    clock = Clock.behind(100)
    old = await ours.create_session(**SESSION, state={"old": 1}, title="Old", ttl=1000)
    delta = EventActions(state_delta={"more": 1})
    await ours.append_event(old, Event(author="x", actions=delta))
    with pytest.raises(AlreadyExistsError):
        await ours.create_session(**SESSION)
    await ours.update_session(**SESSION, ttl=10)
    clock.catch_up()

    await ours.create_session(**SESSION, state={"new": 1})

    found = await ours.get_session(**SESSION)
    assert found is not None
    assert (found.state, found.events) == ({"new": 1}, [])
    assert (await ours.update_session(**SESSION, ttl=None)).title is None
    with pytest.raises(ValueError, match="modified in storage"):
        await ours.append_event(old, Event(author="x"))


async def test_bad_details_create_and_change_nothing(
    ours: MongoSessionService,
) -> None:
    """What a session cannot have is refused, with all that comes with it."""
    bad: dict[str, Any] = {"title": "T", "labels": {"a": 1}, "ttl": 5}
    with pytest.raises(InvalidInputError, match="label 'a' must be a string"):
        await ours.create_session(**SESSION, state={"user:u": 1}, **bad)
    assert await ids(ours) == []
    assert await ours.get_user_state(**OF_USER) == {}
    await ours.create_session(**SESSION)

    with pytest.raises(InvalidInputError, match="label 'a' must be a string"):
        await ours.update_session(**SESSION, **bad)

    shown = await ours.update_session(**SESSION, labels={"a": "1"})
    assert (shown.title, shown.ttl) == (None, None)
