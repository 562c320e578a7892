"""Sessions on their way in are cut into parts by number and by size."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.events import Event
from google.genai import types

from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.model.records import SessionKey
from mongo_session_service.transfer.batches import BatchEncoder
from mongo_session_service.transfer.sources import SessionHeader


@pytest.mark.parametrize("limit", ["MAX_EVENTS", "MAX_BYTES"])
def test_every_part_of_a_long_session_is_full(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """However many parts went before, the next takes as many events as the first."""
    module = "mongo_session_service.transfer.batches"
    monkeypatch.setattr(f"{module}.{limit}", {"MAX_EVENTS": 9}.get(limit, 10_000))
    encoder = BatchEncoder(NO_HOOKS)
    header = SessionHeader(SessionKey("a", "u", "s"), {"n": 1}, 1.0)
    part = types.Part(text="x" * 1000)
    batches: list[Any] = [*encoder.add_item(header)]

    for number in range(100):
        event = Event(id=f"{number}", author="u", content=types.Content(parts=[part]))
        batches += encoder.add_item(event)
    batches += encoder.end_batch()

    lengths = [
        len(each.appends)
        for batch in batches
        for each in batch.sessions.values()
        if each.appends
    ]
    assert sum(lengths) == 100
    assert min(lengths[:-1]) > 5
