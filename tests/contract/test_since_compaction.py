"""Reads since a compaction: what it covers is not loaded, and what is needed is."""

from __future__ import annotations

import pytest
from google.adk.agents.run_config import RunConfig
from google.adk.events import Event, EventActions
from google.adk.events.event_actions import EventCompaction
from google.adk.sessions import Session
from google.genai import types
from pydantic import ValidationError

from mongo_session_service import MongoSessionService, SinceCompaction

OF_SESSION = {"app_name": "app", "user_id": "ada"}


async def store(
    service: MongoSessionService, turns: int, *, summed_up: int = 0
) -> Session:
    """A session of turns, of which so many are summed up before the last one."""
    session = await service.create_session(**OF_SESSION, state={"kept": "yes"})
    for turn in range(1, turns + 1):
        if turn == turns and summed_up:
            content = types.Content(role="model", parts=[types.Part(text="summary")])
            compaction = EventCompaction(
                start_timestamp=1.0,
                end_timestamp=summed_up + 0.5,
                compacted_content=content,
            )
            actions = EventActions(compaction=compaction)
            summary = Event(id="summary", author="user", actions=actions)
            await service.append_event(session, summary)
        for author, time in (("user", float(turn)), ("agent", turn + 0.5)):
            event = Event(
                id=f"{author}-{turn}",
                author=author,
                invocation_id=f"i{turn}",
                timestamp=time,
                content=types.Content(parts=[types.Part(text=f"turn {turn}")]),
            )
            await service.append_event(session, event)
    return session


async def load(
    service: MongoSessionService, session: Session, config: SinceCompaction
) -> Session:
    loaded = await service.get_session(
        **OF_SESSION, session_id=session.id, config=config
    )
    assert loaded is not None
    return loaded


@pytest.mark.parametrize(
    ("overlap", "expected"),
    [
        (0, ["user-4", "agent-4", "summary", "user-5", "agent-5"]),
        (
            1,
            ["user-3", "agent-3", "user-4", "agent-4", "summary", "user-5", "agent-5"],
        ),
    ],
)
async def test_what_a_summary_covers_is_not_loaded(
    ours: MongoSessionService, overlap: int, expected: list[str]
) -> None:
    """Unless the next summary repeats it."""
    session = await store(ours, 5, summed_up=3)

    loaded = await load(ours, session, SinceCompaction(overlap_size=overlap))

    assert [event.id for event in loaded.events] == expected
    assert loaded.state == session.state


async def test_a_session_without_a_summary_is_loaded_whole(
    ours: MongoSessionService,
) -> None:
    """Nothing stands for its events."""
    session = await store(ours, 2)

    loaded = await load(ours, session, SinceCompaction())

    assert [event.id for event in loaded.events] == [
        event.id for event in session.events
    ]


async def test_what_is_loaded_can_be_appended_to(ours: MongoSessionService) -> None:
    """It is as current as a session that was loaded whole."""
    session = await store(ours, 3, summed_up=2)
    loaded = await load(ours, session, SinceCompaction())

    await ours.append_event(loaded, Event(id="new", author="user"))

    again = await load(ours, session, SinceCompaction())
    assert [event.id for event in again.events][-1] == "new"


async def test_a_session_that_is_not_stored_is_none(ours: MongoSessionService) -> None:
    """As for every other way to load one."""
    config = SinceCompaction()

    assert (
        await ours.get_session(**OF_SESSION, session_id="none", config=config) is None
    )


def test_adk_hands_it_on() -> None:
    """``RunConfig`` keeps the class of what it is given."""
    config = RunConfig(get_session_config=SinceCompaction(overlap_size=2))

    kept = config.model_copy(deep=True).get_session_config

    assert kept == SinceCompaction(overlap_size=2)


@pytest.mark.parametrize(
    "wrong",
    [{"num_recent_events": 5}, {"after_timestamp": 1.0}, {"overlap_size": -1}],
)
def test_it_stands_alone(wrong: dict[str, float]) -> None:
    """It takes no other limit, and no fewer than none."""
    with pytest.raises(ValidationError):
        SinceCompaction(**wrong)
