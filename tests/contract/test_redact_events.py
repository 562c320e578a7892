"""Redacting events: their content is replaced, the log stays."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.genai import types
from support.waiting import answer, ask, say

from mongo_session_service import InvalidInputError, MongoSessionService

ADA = {"app_name": "app", "user_id": "ada"}
KEY = {**ADA, "session_id": "s"}
CARD = "4111-1111"


def secret(number: int, turn: str = "i1", **delta: Any) -> Event:
    """An event with a card number wherever content can be."""
    parts = [
        types.Part(text=CARD),
        types.Part(
            function_call=types.FunctionCall(id="c", name="pay", args={CARD: [CARD]})
        ),
        types.Part(
            function_response=types.FunctionResponse(
                id="r", name="look", response={"card": {"number": CARD}}
            )
        ),
        types.Part.from_bytes(data=CARD.encode(), mime_type="image/png"),
        types.Part.from_uri(file_uri=f"gs://{CARD}", mime_type="image/png"),
    ]
    return Event(
        id=f"e{number}",
        author="clerk",
        invocation_id=turn,
        content=types.Content(role="model", parts=parts),
        actions=EventActions(state_delta=delta, artifact_delta={CARD: 1}),
        grounding_metadata=types.GroundingMetadata(web_search_queries=[CARD]),
        input_transcription=types.Transcription(text=CARD),
        output_transcription=types.Transcription(text=CARD, finished=True),
        custom_metadata={CARD: CARD},
        error_message=CARD,
    )


async def fill(service: MongoSessionService, *events: Event) -> None:
    session = await service.create_session(**KEY)
    for event in events:
        await service.append_event(session, event)


async def stored(service: MongoSessionService, session_id: str = "s") -> Any:
    return await service.get_session(**ADA, session_id=session_id)


async def test_content_is_redacted_and_the_event_stays(
    ours: MongoSessionService,
) -> None:
    """Ids, names, author, time and place in the log stay; nothing else is shown."""
    before = secret(1, own=CARD, gone=None)
    await fill(ours, say("Hi", "i0"), before, say("Bye", "i2"))
    assert CARD in (await stored(ours)).events[1].model_dump_json()

    assert await ours.redact_events(**KEY, event_ids=["e1"], state=True) == 1

    session = await stored(ours)
    hi, event, bye = session.events
    assert [hi.content.parts[0].text, bye.content.parts[0].text] == ["Hi", "Bye"]
    assert CARD not in session.model_dump_json()
    for name in ("id", "author", "timestamp", "invocation_id"):
        assert getattr(event, name) == getattr(before, name)
    (call,), (response,) = event.get_function_calls(), event.get_function_responses()
    assert (call.id, call.name, response.id, response.name) == ("c", "pay", "r", "look")
    assert event.content.parts[0].text == "[redacted]"
    assert event.actions.state_delta == {"own": "[redacted]", "gone": None}
    assert session.state == {"own": "[redacted]", "gone": None}
    assert [revision async for revision, _ in ours.iter_events(**KEY)] == [1, 2, 3]


async def test_a_redaction_is_done_once(ours: MongoSessionService) -> None:
    """What is redacted is not redacted again; a loaded session does not get stale."""
    await fill(ours, secret(1), secret(2, "i2"), secret(3, "i2"))
    session = await stored(ours)
    wanted = {"invocation_id": "i2", "replacement": "XXX"}
    assert await ours.redact_events(**KEY, **wanted) == 2
    assert await ours.redact_events(**KEY, **wanted) == 0
    assert await ours.redact_events(**KEY, event_ids=["e1", "e2", "e1"]) == 1

    await ours.append_event(session, say("Go on", "i4"))
    shown = [each.content.parts[0].text for each in (await stored(ours)).events]
    assert shown == ["[redacted]", "XXX", "XXX", "Go on"]


async def test_state_set_by_later_events_stays(
    ours: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """Keys whose value comes from the event are named, and replaced if asked for."""
    shared = {"app:a": CARD, "user:u": CARD, "user:later": CARD}
    later = EventActions(state_delta={"b": "new", "user:later": "new"})
    await fill(
        ours,
        secret(1, a=CARD, b=CARD, **shared),
        Event(author="x", actions=later),
    )
    with caplog.at_level(logging.WARNING, "mongo_session_service.service"):
        assert await ours.redact_events(**KEY, event_ids=["e1"]) == 1
    (record,) = caplog.records
    assert "under 'a', 'app:a', 'user:u'." in record.getMessage()
    assert CARD not in record.getMessage()
    state = (await stored(ours)).state
    assert state == {"a": CARD, "b": "new", **shared, "user:later": "new"}

    session = await stored(ours)
    await ours.append_event(session, secret(2, c=CARD, **shared))
    assert await ours.redact_events(**KEY, event_ids=["e1", "e2"], state=True) == 1
    gone = dict.fromkeys(["a", "c", *shared], "[redacted]")
    assert (await stored(ours)).state == {**gone, "b": "new"}


async def test_a_redaction_reaches_forks_if_asked_for(
    ours: MongoSessionService,
) -> None:
    """Copies in forks of forks are redacted as well, and no other event of a fork."""
    await fill(ours, secret(1, k=CARD), secret(2, "i2", k=CARD), secret(3, "i3"))
    await ours.fork_session(**KEY, new_session_id="first", at_revision=1)
    await ours.fork_session(**KEY, new_session_id="all")
    await ours.fork_session(**{**KEY, "session_id": "all"}, new_session_id="again")
    await ours.delete_session(**ADA, session_id="all")
    again = await stored(ours, "again")
    await ours.append_event(again, secret(4, "i4"))
    wanted = {"event_ids": ["e1", "e2"], "state": True}

    assert await ours.redact_events(**KEY, **wanted) == 2
    assert await ours.redact_events(**KEY, **wanted, forks=True) == 1 + 2
    assert await ours.redact_events(**KEY, **wanted, forks=True) == 0

    for name, left in ("s", 1), ("first", 0), ("again", 2):
        session = await stored(ours, name)
        texts = [each.content.parts[0].text for each in session.events]
        assert texts.count(CARD) == left
        assert session.state == {"k": "[redacted]"}


async def test_forks_of_a_deleted_session_are_left_alone(
    ours: MongoSessionService,
) -> None:
    """A session that was created again under its id has no forks yet."""
    await fill(ours, secret(1))
    await ours.fork_session(**KEY, new_session_id="t")
    await ours.delete_session(**KEY)
    await fill(ours, secret(2))
    assert await ours.redact_events(**KEY, event_ids=["e2"], forks=True) == 1
    assert CARD in (await stored(ours, "t")).model_dump_json()


async def test_a_call_that_is_redacted_waits_no_more(
    ours: MongoSessionService,
) -> None:
    """Nobody can answer what is not to be read."""
    await fill(ours, ask("c1"), ask("c2", turn="i2"), ask("c3", turn="i2"))
    await ours.redact_events(**KEY, invocation_id="i2")
    (found,) = (await ours.find_sessions(**ADA, waiting=True)).sessions
    assert [each.call_id for each in found.waiting] == ["c1"]

    session = await stored(ours)
    await ours.append_event(session, answer("c1"))
    assert (await ours.find_sessions(**ADA, waiting=True)).sessions == []


async def test_a_redaction_with_an_unknown_event_changes_nothing(
    ours: MongoSessionService,
) -> None:
    """The error names events that are not of the session."""
    await fill(ours, secret(1))
    with pytest.raises(InvalidInputError, match="no event with id 'e2', 'e3'"):
        await ours.redact_events(**KEY, event_ids=["e1", "e2", "e3"])
    with pytest.raises(InvalidInputError, match="no event of invocation 'i9'"):
        await ours.redact_events(**KEY, invocation_id="i9")
    with pytest.raises(SessionNotFoundError):
        await ours.redact_events(**ADA, session_id="t", event_ids=["e1"])
    (event,) = (await stored(ours)).events
    assert CARD in event.content.parts[0].text


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({}, "either event_ids or an invocation_id"),
        ({"event_ids": ["e"], "invocation_id": "i"}, "either event_ids or an inv"),
        ({"event_ids": []}, "event_ids must name an event"),
        ({"event_ids": "e1"}, "event_ids must be a list of ids, not str"),
        ({"event_ids": [1]}, "Each of event_ids must be a string, not int"),
        ({"invocation_id": 7}, "invocation_id must be a string, not int"),
        ({"event_ids": ["e"], "replacement": None}, "replacement must be a string"),
        ({"event_ids": ["e"], "replacement": ""}, "replacement must not be empty"),
        ({"event_ids": ["e"], "state": 1}, "state must be True or False, not int"),
        ({"event_ids": ["e"], "forks": 0}, "forks must be True or False, not int"),
    ],
)
async def test_bad_input_is_named(
    service: MongoSessionService, wrong: dict[str, Any], says: str
) -> None:
    """Each argument is checked before anything is read."""
    with pytest.raises(InvalidInputError, match=says):
        await service.redact_events(**KEY, **wrong)
