"""State: its four scopes, and what a delta does to them."""

from __future__ import annotations

from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import BaseSessionService, Session

APP, USER = "my_app", "user-1"


async def create(sessions: BaseSessionService, **kwargs: Any) -> Session:
    return await sessions.create_session(**{"app_name": APP, "user_id": USER} | kwargs)


async def append(
    sessions: BaseSessionService, session: Session, delta: dict[str, Any]
) -> Event:
    event = Event(author="x", actions=EventActions(state_delta=delta))
    return await sessions.append_event(session, event)


async def reload(sessions: BaseSessionService, session: Session) -> Session:
    found = await sessions.get_session(
        app_name=session.app_name, user_id=session.user_id, session_id=session.id
    )
    assert found is not None
    return found


async def test_each_prefix_has_its_scope(
    sessions: BaseSessionService,
) -> None:
    """app: is seen by every user, user: by every session, the rest by one session."""
    first = await create(
        sessions, session_id="1", state={"app:a": 0, "user:u": 0, "s": 0, "temp:t": 0}
    )
    await append(sessions, first, {"app:b": 1, "user:v": 1, "r": 1, "temp:t": 1})

    sibling = await create(sessions, session_id="2")
    stranger = await create(sessions, user_id="user-2")
    foreigner = await create(sessions, app_name="other_app")

    shared = {"app:a": 0, "app:b": 1}
    users = {"user:u": 0, "user:v": 1}
    assert (await reload(sessions, first)).state == {"s": 0, "r": 1} | shared | users
    assert sibling.state == shared | users
    assert stranger.state == shared
    assert foreigner.state == {}


async def test_create_updates_shared_state(sessions: BaseSessionService) -> None:
    """A new session's app: and user: keys are merged into what is there."""
    await create(sessions, state={"app:a": 1, "app:b": 1, "user:u": 1})
    second = await create(sessions, state={"app:b": 2, "user:v": 2})

    assert second.state == {"app:a": 1, "app:b": 2, "user:u": 1, "user:v": 2}


async def test_temp_state_lasts_for_the_invocation_only(
    sessions: BaseSessionService,
) -> None:
    """temp: is in the caller's session, but in no event and not in storage."""
    session = await create(sessions)
    event = await append(sessions, session, {"temp:draft": 1, "kept": 2})

    assert session.state == {"temp:draft": 1, "kept": 2}
    assert event.actions.state_delta == {"kept": 2}
    stored = await reload(sessions, session)
    assert stored.state == {"kept": 2}
    assert stored.events[0].actions.state_delta == {"kept": 2}


async def test_none_is_a_value(sessions: BaseSessionService) -> None:
    """A key set to None stays, in every scope."""
    session = await create(sessions, state={"k": 1, "app:k": 1, "user:k": 1})
    await append(sessions, session, {"k": None, "app:k": None, "user:k": None})

    assert (await reload(sessions, session)).state == {
        "k": None,
        "app:k": None,
        "user:k": None,
    }


async def test_a_dict_replaces_a_dict(sessions: BaseSessionService) -> None:
    """A delta sets whole values: nothing is merged below the top level."""
    state = {"k": {"a": 1, "b": 1}, "app:k": {"a": 1, "b": 1}}
    session = await create(sessions, state=state)
    await append(sessions, session, {"k": {"a": 2}, "app:k": {"a": 2}})

    assert (await reload(sessions, session)).state == {
        "k": {"a": 2},
        "app:k": {"a": 2},
    }


async def test_values_keep_their_type(sessions: BaseSessionService) -> None:
    """A value comes back as it was, by initial state and by delta, in every scope."""
    values = [True, 0, -1, 2**40, 2**63, -(2**200), 0.0, -0.0, 1.0, 1e308, ""]
    values += ["ä\0\U0001f600", [], {}, [[], {}, None], "\ud800"]
    values += [{"": {"$set": 1, "a.b": 2, "%json": "x"}}, {"k\0": "\udfff\ud800"}]
    values += [{"$ref": "c", "$id": 1}, {"$oid": "x"}]
    scopes = {
        f"{scope}{number}": value
        for scope in ("", "app:", "user:")
        for number, value in enumerate(values)
    }
    created = await create(sessions, session_id="1", state=scopes)
    appended = await create(sessions, session_id="2")
    await append(sessions, appended, {f"{key}+": scopes[key] for key in scopes})

    for session, suffix in ((created, ""), (appended, "+")):
        state = (await reload(sessions, session)).state
        for key, value in scopes.items():
            assert repr(state[key + suffix]) == repr(value)
            assert type(state[key + suffix]) is type(value)


async def test_any_string_is_a_key(sessions: BaseSessionService) -> None:
    """A key may hold any characters, in every scope, and names only itself."""
    keys = ["", ".", "a.b", "a", "$set", "a$b", "%", "%2E", "%json", "\0", "0", "_id"]
    keys += ["ä", "\udc00", "__session_metadata__", "state.x", "x" * 4000]
    state = {f"{scope}{key}": key for scope in ("", "app:", "user:") for key in keys}
    session = await create(sessions, state=state)
    delta = {name: f"{name}!" for name in state}
    await append(sessions, session, delta | {"other": 0})

    assert (await reload(sessions, session)).state == delta | {"other": 0}
    users = {key: f"user:{key}!" for key in keys}
    assert await sessions.get_user_state(app_name=APP, user_id=USER) == users


async def test_changing_a_fetched_session_changes_nothing_stored(
    sessions: BaseSessionService,
) -> None:
    """Only events change state: writes to a fetched session stay with its reader."""
    session = await create(sessions, state={"k": [1], "app:k": [1], "user:k": [1]})
    for key in ("k", "app:k", "user:k"):
        session.state[key].append(2)
    session.state["new"] = 1
    (await sessions.get_user_state(app_name=APP, user_id=USER))["k"].append(2)

    assert (await reload(sessions, session)).state == {
        "k": [1],
        "app:k": [1],
        "user:k": [1],
    }


async def test_user_state_is_read_without_a_session(
    sessions: BaseSessionService,
) -> None:
    """get_user_state has the user's keys without prefix, and only that user's."""
    session = await create(sessions, state={"user:name": "Ada", "app:a": 1, "s": 1})
    await append(sessions, session, {"user:seen": {"n": 1}})

    own = await sessions.get_user_state(app_name=APP, user_id=USER)
    assert own == {"name": "Ada", "seen": {"n": 1}}
    assert await sessions.get_user_state(app_name=APP, user_id="user-2") == {}
    assert await sessions.get_user_state(app_name="other", user_id=USER) == {}
