"""Redaction of an event: its content is replaced, what the log works with stays."""

from __future__ import annotations

from typing import Any, Final

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types

from mongo_session_service.codec import documents
from mongo_session_service.codec.hooks import Hooks
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.waiting_calls import REDACTED

_KEPT: Final = (
    *("id", "timestamp", "author", "invocation_id", "branch", "isolation_scope"),
    *("node_info", "model_version", "partial", "turn_complete", "finish_reason"),
    *("turn_complete_reason", "interrupted", "error_code", "usage_metadata"),
)
"""Fields of an event that say nothing of its content. Others are left out, also those
of a later ADK."""

_KEPT_ACTIONS: Final = (
    *("skip_summarization", "transfer_to_agent", "escalate", "end_of_agent", "route"),
    "rewind_before_invocation_id",
)


def is_redacted(event: Event) -> bool:
    """Tell whether an event's content was replaced before."""
    return REDACTED in (event.custom_metadata or {})


def redacted_event(event: Event, replacement: str) -> Event:
    """Make an event that says and sets the replacement in the place of everything.

    Its calls and responses have their ids and names, so that they still belong together
    and ADK makes prompts of them. No call waits for a person any longer.
    """
    content = event.content
    kept: dict[str, Any] = {name: getattr(event, name, None) for name in _KEPT}
    return Event(
        **{name: it for name, it in kept.items() if it is not None},
        content=None if content is None else _content(content, replacement),
        actions=_actions(event.actions, replacement),
        error_message=None if event.error_message is None else replacement,
        input_transcription=_transcription(event.input_transcription, replacement),
        output_transcription=_transcription(event.output_transcription, replacement),
        output=None if getattr(event, "output", None) is None else replacement,
        custom_metadata={REDACTED: True},
    )


def redacted_document(
    event: Event, key: SessionKey, revision: int, hooks: Hooks, replacement: str
) -> Document:
    """Encode a redacted event as it is stored in the place of the original."""
    redacted = redacted_event(event, replacement)
    append = documents.encode_append(key, redacted, hooks)
    return documents.event_document(append, revision)


def _content(content: types.Content, replacement: str) -> types.Content:
    parts = [_part(each, replacement) for each in content.parts or ()]
    return types.Content(role=content.role, parts=parts)


def _part(part: types.Part, replacement: str) -> types.Part:
    if call := part.function_call:
        args = {"redacted": replacement}
        kept = types.FunctionCall(id=call.id, name=call.name, args=args)
        return types.Part(function_call=kept)
    if response := part.function_response:
        answer = types.FunctionResponse(
            id=response.id, name=response.name, response={"redacted": replacement}
        )
        return types.Part(function_response=answer)
    return types.Part(text=replacement, thought=part.thought)


def _actions(actions: EventActions, replacement: str) -> EventActions:
    kept = {name: getattr(actions, name, None) for name in _KEPT_ACTIONS}
    compaction = actions.compaction
    if compaction is not None:
        said = _content(compaction.compacted_content, replacement)
        compaction = compaction.model_copy(update={"compacted_content": said})
    return EventActions(
        **{name: it for name, it in kept.items() if it is not None},
        state_delta={
            key: None if value is None else replacement
            for key, value in actions.state_delta.items()
        },
        compaction=compaction,
    )


def _transcription(
    said: types.Transcription | None, replacement: str
) -> types.Transcription | None:
    return said and types.Transcription(text=replacement, finished=said.finished)
