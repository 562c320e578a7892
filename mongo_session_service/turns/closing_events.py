"""Closing events: they end what a stopped or abandoned turn has left open in its log.

ADK closes an invocation that its caller aborts in the same way, but only in the process
that runs it. See ``google.adk.events._abort_events``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from google.adk.events.event import Event
from google.genai import types

from mongo_session_service.codec.waiting_calls import ABORTED, STOPPED

_FAILED: Final = "The turn failed before this call was answered."
_CUT_OFF: Final = "The turn was cut off: its process has ended."


def with_reason(event: Event, reason: str | None) -> Event:
    """Add why a turn was stopped to an event that closes it or was cut off."""
    if reason is None or not (event.error_code == ABORTED or event.interrupted):
        return event
    metadata = {**(event.custom_metadata or {}), "stop_reason": reason}
    return event.model_copy(update={"custom_metadata": metadata})


def closing_events_of_stopped(
    events: Sequence[Event], root_agent_name: str | None
) -> list[Event]:
    """Close the invocations that a stop has cut off, unless ADK has done it.

    The root agent, if it is known, is the author of the event that closes what left no
    call open.
    """
    closing: list[Event] = []
    for invocation_id, own in _group_by_invocation(events).items():
        if any(each.error_code == ABORTED for each in own):
            continue
        last = own[-1]
        is_reply = last.author != "user" and last.is_final_response()
        if is_reply and last.isolation_scope:
            continue  # a task agent that waits for its user
        answers = _error_responses(own, STOPPED, closes_waiting=True)
        if not answers and root_agent_name is not None:
            answers = [_abort_event(invocation_id, root_agent_name, STOPPED)]
        closing += answers
    return closing


def closing_events_of_failed(
    events: Sequence[Event], message: str = _FAILED
) -> list[Event]:
    """Close the calls that a failed turn has left open; not those for people."""
    return [
        event
        for own in _group_by_invocation(events).values()
        for event in _error_responses(own, message, closes_waiting=False)
    ]


def closing_events_of_abandoned(
    events: Sequence[Event], root_agent_name: str | None
) -> list[Event]:
    """Close the calls that an abandoned turn has left open, or mark it as cut off.

    It is not marked if an agent has responded, or its root agent is not known.
    """
    closing = closing_events_of_failed(events, _CUT_OFF)
    if closing or not events or root_agent_name is None:
        return closing
    last = events[-1]
    is_answered = last.author != "user" and last.is_final_response()
    if is_answered or last.error_code == ABORTED:
        return []
    return [_abort_event(last.invocation_id, root_agent_name, _CUT_OFF)]


def _abort_event(invocation_id: str, author: str, message: str) -> Event:
    return Event(
        invocation_id=invocation_id,
        author=author,
        error_code=ABORTED,
        error_message=message,
    )


def _group_by_invocation(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in events:
        found.setdefault(event.invocation_id, []).append(event)
    return found


def _error_responses(
    events: list[Event], message: str, *, closes_waiting: bool
) -> list[Event]:
    """Answer the open calls of one invocation with an error, as their agents would."""
    answered = {each.id for event in events for each in event.get_function_responses()}
    closing: dict[tuple[str, str | None, str | None], Event] = {}
    for event in events:
        for call in event.get_function_calls():
            waits = call.id in (event.long_running_tool_ids or ())
            if not call.id or call.id in answered or (waits and not closes_waiting):
                continue
            agent = (event.author, event.branch, event.isolation_scope)
            if agent not in closing:
                closing[agent] = Event(
                    invocation_id=event.invocation_id,
                    author=event.author,
                    branch=event.branch,
                    isolation_scope=event.isolation_scope,
                    content=types.Content(role="user", parts=[]),
                    error_code=ABORTED,
                    error_message=message,
                )
            response = types.FunctionResponse(
                id=call.id, name=call.name, response={"error": message}
            )
            parts = closing[agent].content.parts  # type: ignore[union-attr]
            parts.append(types.Part(function_response=response))  # type: ignore[union-attr]
    return list(closing.values())


def interrupted_answers(pieces: Iterable[Event], log: Iterable[Event]) -> list[Event]:
    """Make whole events of answers that a stop has interrupted; drop thoughts.

    A piece has all there is so far of one text. Those in the log are left out.
    """
    stored = {each.id for each in log}
    return [
        each.model_copy(update={"partial": None, "interrupted": True})
        for each in pieces
        if each.id not in stored and not each.content.parts[0].thought  # type: ignore[union-attr, index]
    ]
