"""Waiting calls as fields of a session's document, or of an event's that changes them.

A session for which nobody waits does not have them, so that an index finds the others.
Where a hook seals events, it seals each call as a small event as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.adk.events.event import Event
from google.genai import types

from mongo_session_service.codec.bson_values import (
    UnreadableError,
    decode_value,
    encode_value,
)
from mongo_session_service.codec.events import build_event, dump_event
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.results import WaitingCall
from mongo_session_service.model.waiting_calls import WaitingCalls

WAITING: Final = "waiting"
"""Where a session names the calls that wait for people."""

WAITING_FIELDS: Final = (WAITING, "waiting_more")


def encode_waiting(waiting: WaitingCalls, key: SessionKey, hooks: Hooks) -> Document:
    """Encode waiting calls; None stands for a field that is not to be there."""
    calls = [
        encode_value(each.model_dump())
        if hooks.before_store is None
        else _seal(each, Owner.of_session(key), hooks)
        for each in waiting.named
    ]
    return {WAITING: calls or None, "waiting_more": waiting.more or None}


def _seal(call: WaitingCall, owner: Owner, hooks: Hooks) -> Document:
    function_call = types.FunctionCall(id=call.call_id, name=call.name)
    part = types.Part(function_call=function_call)
    event = Event(
        author=call.author or "",
        timestamp=call.since,
        content=types.Content(role="model", parts=[part]),
        long_running_tool_ids={call.call_id},
    )
    fields, _ = dump_event(event)
    fields["actions"] = {}
    sealed = encode_value(hooks.event_to_store(fields, owner))
    hooked = {"hooked": True} if hooks.has_both else {}
    return {"event": sealed, "wrapped": True, **hooked, "revision": call.revision}


def decode_waiting(document: Mapping[str, Any], hooks: Hooks) -> WaitingCalls:
    try:
        id_ = document["_id"]
        calls = [
            _unseal(each, Owner(id_["app_name"], id_["user_id"]), hooks)
            if "event" in each
            else WaitingCall(**decode_value(each))
            for each in document.get(WAITING) or ()
        ]
        return WaitingCalls(tuple(calls), document.get("waiting_more") or 0)
    except (AttributeError, LookupError, TypeError, ValueError):
        # Errors of pydantic may quote what is stored.
        raise UnreadableError("What waits") from None


def _unseal(stored: Document, owner: Owner, hooks: Hooks) -> WaitingCall:
    fields = decode_value(stored["event"])
    since, revision = fields["timestamp"], stored["revision"]
    if "hooked" in stored and hooks.after_load is None:
        return WaitingCall(
            call_id="", name=None, author=None, since=since, revision=revision
        )
    event = build_event(hooks.loaded_event(fields, owner))
    (call_id,) = event.long_running_tool_ids or {""}
    names = [each.name for each in event.get_function_calls()]
    return WaitingCall(
        call_id=call_id,
        name=names[0] if names else None,
        author=event.author or None,
        since=since,
        revision=revision,
    )
