"""Event blocks: what is built again is what was built, and belongs to its caller."""

from __future__ import annotations

from datetime import UTC, datetime

import bson
from google.adk.events import Event, EventActions
from support.event_fields import ACTIONS, EVENT

from mongo_session_service.codec import documents
from mongo_session_service.codec.events import build_event
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions.reads import build_block, decode_blocks
from mongo_session_service.storage.database import CODEC_OPTIONS

KEY = SessionKey("app", "user", "session")


def encoded(event: Event) -> bytes:
    append = documents.encode_append(KEY, event, NO_HOOKS)
    return bson.encode(documents.event_document(append, 1))


def test_every_field_is_built_again() -> None:
    """As often as it is asked for."""
    every = Event(**EVENT, actions=EventActions(**ACTIONS))
    ((built, block),) = decode_blocks([encoded(Event()), encoded(every)], NO_HOOKS, 2)

    assert block is not None
    for _ in range(2):
        again = build_block(block)
        assert again == built
        assert [each.model_dump() for each in again] == [
            each.model_dump() for each in built
        ]


def test_every_field_is_built_as_adk_builds_it() -> None:
    """Without the checks that ADK runs for short forms."""
    every = Event(**EVENT, actions=EventActions(**ACTIONS))
    fields = bson.decode(encoded(every), CODEC_OPTIONS)["event"]

    ours, theirs = build_event(fields), Event.model_validate(fields)

    assert type(ours) is Event
    assert ours == theirs
    assert ours.model_dump_json() == theirs.model_dump_json()
    assert ours.model_fields_set == theirs.model_fields_set


def test_what_is_not_json_has_no_block() -> None:
    """Another tool may have stored it."""
    document = bson.decode(encoded(Event(custom_metadata={"at": "now"})))
    document["event"]["custom_metadata"]["at"] = datetime.now(UTC)

    ((built, block),) = decode_blocks([bson.encode(document)], NO_HOOKS, 1)

    assert len(built) == 1
    assert block is None
