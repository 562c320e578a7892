"""Events that were assigned what pydantic would not have taken, and odd settings."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.genai import types

from mongo_session_service import InvalidInputError, MongoSessionService

IDS = {"app_name": "app", "user_id": "user", "session_id": "s"}


def mistyped(**fields: Any) -> Event:
    """An event whose fields were assigned what pydantic would not have taken."""
    event = Event(author="x", content=types.Content(parts=[]))
    for path, value in fields.items():
        *owners, name = path.split("__")
        owner: Any = event
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, name, value)
    return event


@pytest.mark.parametrize(
    "event",
    [
        mistyped(actions__transfer_to_agent=["hunter2"]),
        mistyped(actions__artifact_delta={"f": "hunter2"}),
        mistyped(actions__state_delta=["hunter2"]),
        mistyped(content="hunter2"),
        mistyped(custom_metadata="hunter2"),
        mistyped(timestamp=None),
        mistyped(timestamp="hunter2"),
        mistyped(timestamp=10**400),
        mistyped(timestamp=float("nan")),
        mistyped(timestamp=float("inf")),
        mistyped(id=None),
        mistyped(id=""),
        mistyped(id=5),
        mistyped(author=None),
        mistyped(actions=None),
        mistyped(actions={}),
        mistyped(content=types.Part(text="hunter2")),
        mistyped(citation_metadata=ValueError("hunter2")),
        mistyped(content__parts=[types.Content(role="hunter2")]),
        mistyped(avg_logprobs=9**999),
        mistyped(finish_reason=5),
        mistyped(actions__artifact_delta={"hunter2": None}),
        mistyped(actions__requested_auth_configs={"hunter2": {}}),
        mistyped(grounding_metadata={"hunter2" * 99: 1}),
        mistyped(actions__requested_auth_configs=None),
        mistyped(actions__requested_tool_confirmations=None),
        mistyped(node_info=None),
    ],
)
async def test_events_that_could_not_be_read_back_are_refused(
    service: MongoSessionService, event: Event
) -> None:
    """A mistyped event is refused, without a word of its content; the session lives."""
    session = await service.create_session(**IDS)

    with pytest.raises(InvalidInputError) as caught:
        await service.append_event(session, event)

    assert "hunter2" not in str(caught.value)
    assert len(str(caught.value)) < 200
    assert await service.get_session(**IDS) == session


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", None),
        ("state", [("k", 1)]),
        ("events", None),
        ("events", ()),
        ("events", ["hunter2"]),
        ("last_update_time", "hunter2"),
    ],
)
async def test_a_session_that_could_not_show_the_event_is_refused(
    service: MongoSessionService,
    field: str,
    value: Any,
    is_marked: bool,  # noqa: FBT001  a case
) -> None:
    """Nothing is stored by way of a mistyped session, which would then raise."""
    before = await service.create_session(**IDS)
    session = before.model_copy(deep=True)
    if not is_marked:
        session._storage_update_marker = None  # noqa: SLF001  as read elsewhere
    setattr(session, field, value)
    event = Event(author="x", actions=EventActions(state_delta={"k": 1, "temp:k": 2}))

    with pytest.raises(InvalidInputError, match=f"session.{field}") as caught:
        await service.append_event(session, event)

    assert "hunter2" not in str(caught.value)
    assert await service.get_session(**IDS) == before


async def test_odd_events_that_can_be_read_back_are_stored(
    service: MongoSessionService,
) -> None:
    """What pydantic would have converted is stored, and read as converted."""
    session = await service.create_session(**IDS)
    await service.append_event(session, mistyped(timestamp=5, author="y"))
    await service.append_event(session, mistyped(actions__artifact_delta={"f": "7"}))

    found = await service.get_session(**IDS)
    assert found is not None
    assert found.events[0].timestamp == 5.0
    assert found.events[1].actions.artifact_delta == {"f": 7}
    assert (await service.list_sessions(app_name="app")).sessions[0].id == "s"
