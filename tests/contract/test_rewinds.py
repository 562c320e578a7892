"""Rewinds, as ADK's Runner asks for them."""

from __future__ import annotations

from typing import Any

from google.adk.agents import LlmAgent
from google.adk.events import Event, EventActions
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService
from support.one_session import IDS as KEY
from support.one_session import read


async def turn(sessions: BaseSessionService, name: str, **delta: Any) -> None:
    actions = EventActions(state_delta=delta)
    event = Event(author="agent", invocation_id=name, actions=actions)
    await sessions.append_event(await read(sessions), event)


async def rewind(sessions: BaseSessionService, before: str) -> None:
    runner = Runner(
        agent=LlmAgent(name="agent"), app_name="app", session_service=sessions
    )
    await runner.rewind_async(
        user_id="user", session_id="s", rewind_before_invocation_id=before
    )


async def test_a_rewind_restores_the_values_of_earlier_events(
    sessions: BaseSessionService,
) -> None:
    """Keys go back to what earlier events have set; those set since are None."""
    await sessions.create_session(**KEY)
    await turn(sessions, "first", k=1)
    await turn(sessions, "second", k=2, new=True, **{"user:u": 2})

    await rewind(sessions, "second")

    assert (await read(sessions)).state == {"k": 1, "new": None, "user:u": 2}


async def test_a_rewind_keeps_the_initial_state(sessions: BaseSessionService) -> None:
    """What the session was created with is there again, or still, after a rewind."""
    await sessions.create_session(
        **KEY, state={"tenant": "t1", "k": 0, "emptied": 0, "gone": 0}
    )
    await turn(sessions, "first", emptied=None)
    await turn(sessions, "second", k=2, gone=None, new=True)

    await rewind(sessions, "second")

    expected = {"tenant": "t1", "k": 0, "emptied": None, "gone": 0, "new": None}
    assert (await read(sessions)).state == expected
    await rewind(sessions, "first")
    expected = {"tenant": "t1", "k": 0, "emptied": 0, "gone": 0, "new": None}
    assert (await read(sessions)).state == expected
