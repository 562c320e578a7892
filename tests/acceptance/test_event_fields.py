"""Every field that an ADK event has comes back from storage as it was."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.events import Event, EventActions
from pydantic import BaseModel
from support.event_fields import ACTIONS, EVENT
from support.scripted_model import start, stored

from mongo_session_service import MongoSessionService

NOT_SET = {
    "partial": "a partial event is never stored",
    "actions": "its fields are listed on their own",
}


@pytest.mark.parametrize(("model", "values"), [(Event, EVENT), (EventActions, ACTIONS)])
def test_every_field_is_covered(model: type[BaseModel], values: dict[str, Any]) -> None:
    """Each field of this ADK release has a value here, or a reason not to."""
    assert set(model.model_fields) == set(values) | (
        NOT_SET.keys() & model.model_fields.keys()
    )
    unset = model()
    assert not [name for name, value in values.items() if value == getattr(unset, name)]


@pytest.mark.parametrize(
    "events",
    [
        {name: Event(**{"author": "a", name: value}) for name, value in EVENT.items()},
        {
            name: Event(author="a", actions=EventActions(**{name: value}))
            for name, value in ACTIONS.items()
        },
        {"all": Event(**EVENT, actions=EventActions(**ACTIONS))},
    ],
    ids=["event", "actions", "all at once"],
)
async def test_every_field_is_stored(
    service: MongoSessionService, events: dict[str, Event]
) -> None:
    """A field comes back equal and of the same type, alone and with all others."""
    session = await start(service, "s")
    for event in events.values():
        await service.append_event(session, event.model_copy(deep=True))

    read = (await stored(service, "s")).events
    different = [
        name
        for (name, event), again in zip(events.items(), read, strict=True)
        if event != again or event.model_dump_json() != again.model_dump_json()
    ]
    assert different == []
