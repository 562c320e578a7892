"""Waiting calls of a log: those that people have to answer, and have not.

This is the rule of ADK's own index of open interrupts, which is private there: see
``google.adk.events._interrupts``. Two things are added to it, which ADK finds elsewhere
or does not have: the closing events of an invocation that was cut off, and redacted
events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from google.adk.events.event import Event

from mongo_session_service.model.results import WaitingCall

MAX_NAMED: Final = 100
"""Waiting calls that a session's document names; of more it has the number."""

ABORTED: Final = "INVOCATION_ABORTED"
"""The error code of closing events, by which ADK recognises its own."""

REDACTED: Final = "__redacted__"
"""The custom metadata that marks an event whose content was replaced."""

ASKING: Final = ("adk_request_input", "adk_request_credential")
"""ADK's calls that wait for a person even if the event does not mark them so."""


class WaitingCalls(NamedTuple):
    """The calls of a session that wait, the longest first."""

    named: tuple[WaitingCall, ...] = ()
    more: int = 0
    """How many wait beside these."""

    @classmethod
    def of(cls, calls: list[WaitingCall]) -> WaitingCalls:
        """Name as many as a session's document may."""
        return cls(tuple(calls[:MAX_NAMED]), max(0, len(calls) - MAX_NAMED))


class WaitingStep(NamedTuple):
    """The effect of one event on the calls that wait."""

    invocation_id: str = ""
    asks: tuple[WaitingCall, ...] = ()
    """Calls that begin to wait, their revision still unknown."""
    answers: frozenset[str] = frozenset()
    """Ids of calls that wait no longer."""
    rewinds_before: str | None = None
    """The invocation that it undoes, and all that followed."""

    @property
    def has_effect(self) -> bool:
        """False of most events."""
        return bool(self.asks or self.answers or self.rewinds_before)


def waiting_step(event: Event) -> WaitingStep:
    answers: frozenset[str] = frozenset()
    if event.author == "user" or event.error_code == ABORTED:
        responses = event.get_function_responses()
        answers = frozenset(each.id for each in responses if each.id)
        if responses and event.branch and event.author == "user":
            answers |= frozenset(_run_ids(event.branch))
    return WaitingStep(
        event.invocation_id,
        tuple(_asks(event)),
        answers,
        event.actions.rewind_before_invocation_id,
    )


def _run_ids(branch: str) -> Iterator[str]:
    for segment in branch.split("."):
        _, at, run_id = segment.rpartition("@")
        if at and run_id:
            yield run_id


def _asks(event: Event) -> Iterator[WaitingCall]:
    if not event.long_running_tool_ids and not event.content:
        return
    long_running = event.long_running_tool_ids or set()
    names = {
        each.id: each.name
        for each in event.get_function_calls()
        if each.id in long_running or (each.id is not None and each.name in ASKING)
    }
    if REDACTED in (event.custom_metadata or {}):
        return
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
    """Find the calls that wait after a log, the longest first.

    The log has no steps that rewinds have undone; what waited before it is given.
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
