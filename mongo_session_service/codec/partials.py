"""Partial documents: what a running turn has said and not stored, and how it stands."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from google.adk.events.event import Event

from mongo_session_service.codec import documents
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.results import TurnInfo

_LONGEST: Final = 1_000_000
"""Characters of a text in one document, so that several fit into a command."""


def partial_document(
    turn: TurnInfo, number: int, time: datetime, event: Event | None, hooks: Hooks
) -> Document:
    """Return the document of what was said, or, without an event, of a turn's status.

    Args:
        turn: The turn as it stands.
        number: The place among the documents of the turn, which rises.
        time: The server's, about, when it is written.
        event: A partial event.
        hooks: What an event passes through, as if it were appended.

    Raises:
        InvalidInputError: the event cannot be stored.
        DocumentTooLargeError: it is too large.
    """
    key = SessionKey(turn.app_name, turn.user_id, turn.session_id)
    document: Document = {}
    if event is not None:
        append = documents.encode_append(key, event, hooks)
        document = documents.event_document(append, 0, encoded=True)
    if turn.reason is not None:
        document["reason"] = turn.reason
    if turn.error_type is not None:
        document["error"] = turn.error_type
    return document | {
        "_id": {**key.id, "epoch": turn.epoch, "n": number},
        "status": turn.status,
        "since": turn.since,
        "host": turn.host,
        "time": time,
    }


def decode_turn(document: Document) -> TurnInfo:
    """The turn as it stood when a document was written."""
    id_ = document["_id"]
    return TurnInfo(
        **{name: id_[name] for name in SessionKey._fields},
        epoch=id_["epoch"],
        status=document["status"],
        since=document["since"].replace(tzinfo=UTC),
        host=document["host"],
        reason=document.get("reason"),
        error_type=document.get("error"),
    )


def cut_text(event: Event) -> Iterator[Event]:
    """Partial events of a size that can be stored, which say the same together."""
    parts = (event.content and event.content.parts) or []
    if event.content is None or len(parts) != 1 or len(parts[0].text or "") <= _LONGEST:
        yield event
        return
    (part,), text = parts, parts[0].text or ""
    for begin in range(0, len(text), _LONGEST):
        piece: Any = part.model_copy(update={"text": text[begin : begin + _LONGEST]})
        content = event.content.model_copy(update={"parts": [piece]})
        yield event.model_copy(update={"content": content})
