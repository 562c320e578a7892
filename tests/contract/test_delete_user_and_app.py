"""Erasing a user, or an app: all that is theirs, and nothing else."""

from __future__ import annotations

from google.adk.events import Event, EventActions
from google.adk.sessions import Session

from mongo_session_service import Erased, MongoSessionService

APP = "my_app"
USERS = ("ada", "ad", "adam", "bob")


async def fill(ours: MongoSessionService, app_name: str) -> dict[str, list[Session]]:
    """Two sessions of each user, with an event that sets state of every scope."""
    sessions: dict[str, list[Session]] = {user: [] for user in USERS}
    for user, of_user in sessions.items():
        for session_id in ("1", "2"):
            session = await ours.create_session(
                app_name=app_name, user_id=user, session_id=session_id
            )
            delta = {"k": user, "user:k": user, "app:k": app_name}
            event = Event(author="x", actions=EventActions(state_delta=delta))
            await ours.append_event(session, event)
            of_user.append(session)
    return sessions


async def stored(ours: MongoSessionService, app_name: str) -> list[tuple[str, str]]:
    found = await ours.list_sessions(app_name=app_name)
    return sorted((each.user_id, each.id) for each in found.sessions)


async def test_a_user_is_erased(ours: MongoSessionService) -> None:
    """Sessions, events and state go; other users, other apps and app state stay."""
    await fill(ours, APP)
    await fill(ours, "other_app")

    erased = await ours.delete_user(app_name=APP, user_id="ada")

    assert erased == Erased(2, 2, 1, 0, 0, 0)
    left = [(user, each) for user in sorted(USERS) for each in ("1", "2")]
    assert await stored(ours, APP) == [each for each in left if each[0] != "ada"]
    assert await stored(ours, "other_app") == left
    assert await ours.get_user_state(app_name=APP, user_id="ada") == {}
    assert await ours.get_user_state(app_name=APP, user_id="adam") == {"k": "adam"}
    assert await ours.delete_user(app_name=APP, user_id="ada") == Erased(
        0, 0, 0, 0, 0, 0
    )
    new = await ours.create_session(app_name=APP, user_id="ada", session_id="1")
    assert (new.state, new.events) == ({"app:k": APP}, [])
