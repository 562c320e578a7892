"""What may be appended after events that its writer has not seen.

A model is shown its function calls and their responses in pairs. So nothing of another
writer comes between the two, and no call is made or answered by two runs of a turn.
Calls of long-running functions are none of these: their responses come whenever, and
maybe twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.adk.events.event import Event


def is_outrun(seen: Iterable[Event], missed: Iterable[Event], event: Event) -> bool:
    """Whether another run of an event's turn was faster.

    Args:
        seen: The log as the event's writer has it.
        missed: What others have appended since.
        event: What was to come next.
    """
    missed = [*missed]
    if _answered([event]) & _answered(missed) - _long_running([*seen, *missed]):
        return True
    turn = event.invocation_id
    others = [each for each in missed if turn and each.invocation_id == turn]
    return bool(_called([event]) and _called(others))


def unanswered(missed: Iterable[Event], event: Event) -> set[str | None]:
    """The calls that others have made and that have to be responded to before."""
    missed = [*missed]
    open_calls = _called(missed) - _answered(missed) - _long_running(missed)
    return open_calls - _answered([event])


def is_response(event: Event) -> bool:
    """Whether others may be waiting for an event."""
    return bool(event.get_function_responses())


def _called(events: Iterable[Event]) -> set[str | None]:
    """The ids of the function calls in events; names, where they have none."""
    return {
        call.id or call.name for each in events for call in each.get_function_calls()
    }


def _answered(events: Iterable[Event]) -> set[str | None]:
    return {
        response.id or response.name
        for each in events
        for response in each.get_function_responses()
    }


def _long_running(events: Iterable[Event]) -> set[str | None]:
    return {id_ for each in events for id_ in each.long_running_tool_ids or ()}
