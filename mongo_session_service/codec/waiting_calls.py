"""Waiting calls: those of a log that people have to answer, and have not.

The rule is that of ADK's own index of open interrupts, which is private there: see
``google.adk.events._interrupts``. Two things are added to it, which ADK finds elsewhere
or does not have: the closing events of an invocation that was cut off, and redacted
events.

They are fields of a session's document, and of an event's that changes them. A session
for which nobody waits does not have them, so that an index finds the others. Where a
hook seals events, it seals each call as a small event as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from google.adk.events.event import Event
from google.genai import types

from mongo_session_service.codec.bson_values import (
    UnreadableError,
    decode_value,
    encode_value,
)
from mongo_session_service.codec.events import build_event, dump_event
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.errors import quoted
from mongo_session_service.model.records import Document, SessionKey, WaitingStep
from mongo_session_service.model.results import WaitingCall

WAITING: Final = "waiting"
"""Where a session names the calls that wait for people."""

WAITING_FIELDS: Final = (WAITING, "waiting_more")

MAX_NAMED: Final = 100
"""Waiting calls that a session's document lists; it counts the others."""

ABORTED: Final = "INVOCATION_ABORTED"
"""The error code of closing events, by which ADK recognises its own."""

STOPPED: Final = "Invocation was aborted by client."
"""ADK's own message in those that a user's stop has brought about."""

REDACTED: Final = "__redacted__"
"""The custom metadata that marks an event whose content was replaced."""

ASKING: Final = ("adk_request_input", "adk_request_credential")
"""ADK's calls that wait for a person even if the event does not mark them so."""


class WaitingCalls(NamedTuple):
    """The calls of a session that await an answer, the oldest first."""

    named: tuple[WaitingCall, ...] = ()
    more: int = 0
    """The number of further calls that await one."""

    @classmethod
    def of(cls, calls: list[WaitingCall]) -> WaitingCalls:
        """List as many as a session's document holds, and count the others."""
        return cls(tuple(calls[:MAX_NAMED]), max(0, len(calls) - MAX_NAMED))


def waiting_step(event: Event) -> WaitingStep:
    responses = event.get_function_responses()
    rewinds_before = event.actions.rewind_before_invocation_id
    has_calls = event.long_running_tool_ids or event.get_function_calls()
    if not (responses or rewinds_before or has_calls):
        return WaitingStep(event.invocation_id)
    answers: frozenset[str] = frozenset()
    if event.author == "user" or event.error_code == ABORTED:
        answers = frozenset(each.id for each in responses if each.id)
        if responses and event.branch and event.author == "user":
            answers |= frozenset(_run_ids(event.branch))
    return WaitingStep(
        event.invocation_id,
        tuple(_calls_awaiting_answers(event)),
        answers,
        rewinds_before,
    )


def _run_ids(branch: str) -> Iterator[str]:
    for segment in branch.split("."):
        _, at, run_id = segment.rpartition("@")
        if at and run_id:
            yield run_id


def _calls_awaiting_answers(event: Event) -> Iterator[WaitingCall]:
    calls = event.get_function_calls()
    long_running = event.long_running_tool_ids or set()
    if not (calls or long_running) or REDACTED in (event.custom_metadata or {}):
        return
    names = {
        each.id: each.name
        for each in calls
        if each.id in long_running or (each.id is not None and each.name in ASKING)
    }
    for call_id in dict.fromkeys([*names, *sorted(long_running)]):
        yield WaitingCall(
            call_id=call_id,
            name=names.get(call_id),
            author=event.author,
            since=event.timestamp,
            revision=0,
        )


def waiting_calls(
    log: Iterable[tuple[int, WaitingStep]], before: Iterable[WaitingCall] = ()
) -> list[WaitingCall]:
    """Find the calls that await an answer at the end of a log, the oldest first.

    The log has no steps that rewinds have undone; ``before`` are the calls that
    awaited one at its beginning.
    """
    waiting = {each.call_id: each for each in before}
    for revision, step in log:
        for call_id in step.answers:
            waiting.pop(call_id, None)
        for each in step.asks:
            waiting.pop(each.call_id, None)
            asked = each.model_copy(update={"revision": revision})
            waiting[each.call_id] = asked
    return list(waiting.values())


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


def decode_waiting(key: SessionKey, document: Document, hooks: Hooks) -> WaitingCalls:
    """Decode a session's waiting calls, of its document or of an event's."""
    try:
        calls = [
            _unseal(each, Owner.of_session(key), hooks)
            if "event" in each
            else WaitingCall(**decode_value(each))
            for each in document.get(WAITING) or ()
        ]
        return WaitingCalls(tuple(calls), document.get("waiting_more") or 0)
    except (AttributeError, LookupError, TypeError, ValueError):
        # Errors of pydantic may quote what is stored.
        what = f"What waits in session {quoted(key.session_id)}"
        raise UnreadableError(what) from None


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
