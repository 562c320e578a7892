"""Creating, finding, listing and deleting sessions."""

from __future__ import annotations

import time

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event, EventActions
from google.adk.sessions import BaseSessionService

APP, USER = "my_app", "user-1"


async def test_created_session_is_the_one_read_back(
    sessions: BaseSessionService,
) -> None:
    """What create returns equals what get returns."""
    before = time.time()

    created = await sessions.create_session(
        app_name=APP, user_id=USER, session_id="s", state={"topic": "x", "n": [1, {}]}
    )

    assert (created.app_name, created.user_id, created.id) == (APP, USER, "s")
    assert created.state == {"topic": "x", "n": [1, {}]}
    assert created.events == []
    assert before <= created.last_update_time <= time.time()
    assert created == await sessions.get_session(
        app_name=APP, user_id=USER, session_id="s"
    )


@pytest.mark.parametrize("blank", [None, "", "  \n"])
async def test_missing_id_is_generated(
    sessions: BaseSessionService, blank: str | None
) -> None:
    """A session without an id, or with a blank one, gets an id of its own."""
    first, second = [
        await sessions.create_session(app_name=APP, user_id=USER, session_id=blank)
        for _ in range(2)
    ]

    assert first.id.strip()
    assert first.id != second.id


async def test_padded_id_names_the_same_session(sessions: BaseSessionService) -> None:
    """White space around a session id is dropped by create, get and delete alike."""
    created = await sessions.create_session(
        app_name=APP, user_id=USER, session_id=" order-42\n"
    )
    found = await sessions.get_session(
        app_name=APP, user_id=USER, session_id="\torder-42"
    )

    assert created.id == "order-42"
    assert found == created
    with pytest.raises(AlreadyExistsError):
        await sessions.create_session(
            app_name=APP, user_id=USER, session_id="order-42 "
        )
    await sessions.delete_session(app_name=APP, user_id=USER, session_id="order-42  ")
    assert not await sessions.get_session(
        app_name=APP, user_id=USER, session_id="order-42"
    )


async def test_taken_id_changes_nothing(sessions: BaseSessionService) -> None:
    """Creating a session that exists fails and leaves every scope as it was."""
    state = {"k": 1, "app:k": 1, "user:k": 1}
    await sessions.create_session(
        app_name=APP, user_id=USER, session_id="s", state=state
    )

    with pytest.raises(AlreadyExistsError):
        await sessions.create_session(
            app_name=APP,
            user_id=USER,
            session_id="s",
            state={"k": 2, "app:k": 2, "user:k": 2, "app:new": 2, "user:new": 2},
        )

    found = await sessions.get_session(app_name=APP, user_id=USER, session_id="s")
    assert found is not None
    assert found.state == state


async def test_unknown_session_is_none(sessions: BaseSessionService) -> None:
    """Getting a session that does not exist returns None."""
    await sessions.create_session(app_name=APP, user_id=USER, session_id="s")

    for app, user, id_ in (("other", USER, "s"), (APP, "other", "s"), (APP, USER, "t")):
        assert not await sessions.get_session(
            app_name=app, user_id=user, session_id=id_
        )


async def test_deleting_removes_one_session_and_no_shared_state(
    sessions: BaseSessionService,
) -> None:
    """Delete takes a session with its events, and leaves all others and their state."""
    doomed = await sessions.create_session(
        app_name=APP, user_id=USER, session_id="s", state={"app:a": 1, "user:u": 2}
    )
    await sessions.append_event(doomed, Event(author="user"))
    for user, id_ in ((USER, "s2"), ("user-2", "s")):
        await sessions.create_session(app_name=APP, user_id=user, session_id=id_)

    await sessions.delete_session(app_name=APP, user_id=USER, session_id="s")
    await sessions.delete_session(app_name=APP, user_id=USER, session_id="s")

    listed = (await sessions.list_sessions(app_name=APP)).sessions
    assert {(each.user_id, each.id) for each in listed} == {
        (USER, "s2"),
        ("user-2", "s"),
    }
    reborn = await sessions.create_session(app_name=APP, user_id=USER, session_id="s")
    assert reborn.events == []
    assert reborn.state == {"app:a": 1, "user:u": 2}


async def test_list_is_ordered_by_update_then_user_then_id(
    sessions: BaseSessionService,
) -> None:
    """The longest untouched session comes first; ties go by user, then id."""
    at = time.time() + 1000
    for user, id_, offset in (
        ("b", "1", 0),
        ("a", "2", 0),
        ("a", "1", 0),
        ("a", "0", 9),
        ("c", "0", 3),
    ):
        session = await sessions.create_session(
            app_name=APP, user_id=user, session_id=id_
        )
        await sessions.append_event(session, Event(author="x", timestamp=at + offset))

    everyone = await sessions.list_sessions(app_name=APP)
    one_user = await sessions.list_sessions(app_name=APP, user_id="a")

    assert [(each.user_id, each.id) for each in everyone.sessions] == [
        ("a", "1"),
        ("a", "2"),
        ("b", "1"),
        ("c", "0"),
        ("a", "0"),
    ]
    assert [each.id for each in one_user.sessions] == ["1", "2", "0"]


async def test_list_shows_merged_state_and_no_events(
    sessions: BaseSessionService,
) -> None:
    """Listed sessions have the state their scopes give them, and no events."""
    for user in ("u1", "u2"):
        session = await sessions.create_session(
            app_name=APP,
            user_id=user,
            session_id="s",
            state={"own": user, "user:name": user, "app:tags": ["shared"]},
        )
        delta = {"last": "v", "temp:t": 1}
        event = Event(author="x", actions=EventActions(state_delta=delta))
        await sessions.append_event(session, event)

    first, second = (await sessions.list_sessions(app_name=APP)).sessions
    first.state["app:tags"].append("mine alone")

    assert second.events == []
    assert second.state == {
        "own": "u2",
        "last": "v",
        "user:name": "u2",
        "app:tags": ["shared"],
    }


@pytest.mark.parametrize(
    "id_", ["", " \n", "\ud800", "\0", "x" * 4097], ids=["empty", "blank", *"sxl"]
)
async def test_any_string_can_be_looked_up(
    sessions: BaseSessionService, id_: str
) -> None:
    """An id that no session can have finds nothing, lists nothing, deletes nothing."""
    ids = {"app_name": APP, "user_id": USER, "session_id": "s"}
    state = {"k": 1, "app:k": 2, "user:k": 3}
    created = await sessions.create_session(**ids, state=state)

    for name in ids:
        wrong = ids | {name: id_}
        assert await sessions.get_session(**wrong) is None
        await sessions.delete_session(**wrong)
    for app, user in ((id_, USER), (APP, id_), (id_, id_)):
        listed = await sessions.list_sessions(app_name=app, user_id=user)
        assert listed.sessions == []
        assert await sessions.get_user_state(app_name=app, user_id=user) == {}
    assert (await sessions.list_sessions(app_name=id_)).sessions == []
    assert await sessions.get_session(**ids) == created
