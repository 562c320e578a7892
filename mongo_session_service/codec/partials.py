"""Partial documents: what a running turn has produced, and how it stands."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from google.adk.events.event import Event

from mongo_session_service.codec import documents
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.results import TurnInfo

_MAX_PARTIAL_CHARACTERS: Final = 1_000_000
"""Characters of a text in one document, so that several fit into a command."""


def partial_document(
    turn: TurnInfo,
    number: int,
    time: datetime,
    event: Event | None,
    hooks: Hooks,
    *,
    is_first: bool = False,
) -> Document:
    """Return the document of a partial event, or, without one, of a turn's status.

    Its ``number`` is its place among the documents of the turn, which rises; the time
    is the server's, about, when it is written. The first one of an event has a mark.
    """
    key = SessionKey(turn.app_name, turn.user_id, turn.session_id)
    document: Document = {}
    if event is not None:
        document = documents.partial_event_fields(key, event, hooks)
    if is_first:
        document["first"] = True
    place = {**key.id, "epoch": turn.epoch, "n": number}
    creation = {"create_time": turn.session_create_time}
    return {"_id": place, **document, **encode_turn(turn), **creation, "time": time}


def partial_event_id(document: Document) -> Any:
    """The id of the event that a partial is of; None of a turn's status."""
    return document.get("event", {}).get("id")


def encode_turn(turn: TurnInfo) -> Document:
    """A turn's fields beside its session and epoch."""
    fields = {
        "status": turn.status,
        "since": turn.since,
        "host": turn.host,
        "reason": turn.reason,
        "error": turn.error_type,
    }
    return {name: value for name, value in fields.items() if value is not None}


def cut_text(event: Event) -> Iterator[Event]:
    """Cut a partial event into ones that can be stored, and together are the same."""
    content, most = event.content, _MAX_PARTIAL_CHARACTERS
    parts = (content and content.parts) or []
    text = (len(parts) == 1 and parts[0].text) or ""
    if content is None or len(text) <= most:
        yield event
        return
    for begin in range(0, len(text), most):
        piece = parts[0].model_copy(update={"text": text[begin : begin + most]})
        part = content.model_copy(update={"parts": [piece]})
        yield event.model_copy(update={"content": part})
