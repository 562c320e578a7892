"""Compactions: which events of a log a model's request, or the next summary, needs.

ADK leaves out of a request what a summary covers by its time, and what was rewound.
What is needed beyond the rest: all summaries, events that a rewind is found by, private
events of tasks, calls that may still be answered with their invocations, and what has
the id of a call that is needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

FIELDS: Final = (
    *("timestamp", "invocation_id", "isolation_scope", "branch", "node_info.path"),
    *("long_running_tool_ids", "actions.rewind_before_invocation_id"),
    *("actions.compaction.start_timestamp", "actions.compaction.end_timestamp"),
    *("actions.compaction.compacted_content.role",),
    *("content.parts.function_call.id", "content.parts.function_response.id"),
)
"""The fields of an event that decide whether it is needed."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What decides whether an event is needed."""

    revision: int
    time: float
    invocation_id: str
    scope: str | None
    is_summary: bool
    covers: tuple[float, float] | None
    """The times that a summary covers in every request outside of tasks."""
    end: float | None
    """When what it sums up ends, of a summary."""
    rewinds: str | None
    """The first invocation that it undoes."""
    calls: frozenset[str]
    answers: frozenset[str]
    paths: frozenset[str]
    """Ids of calls that its scope or its branch names."""
    is_long_running: bool

    @classmethod
    def of(cls, revision: int, fields: Mapping[str, Any]) -> Trace:
        """The trace of an event's fields, or of those in :data:`FIELDS`."""
        actions = fields.get("actions") or {}
        compaction = actions.get("compaction")
        scope, branch = fields.get("isolation_scope"), fields.get("branch")
        path = (fields.get("node_info") or {}).get("path")
        parts = (fields.get("content") or {}).get("parts") or ()
        named = {each.rpartition("@")[2] for each in (branch or "").split(".")}
        return cls(
            revision=revision,
            time=fields["timestamp"],
            invocation_id=fields.get("invocation_id", ""),
            scope=scope,
            is_summary=compaction is not None,
            covers=None if scope or branch or path else _range(compaction or {}),
            end=(compaction or {}).get("end_timestamp"),
            rewinds=actions.get("rewind_before_invocation_id") or None,
            calls=_ids(parts, "function_call"),
            answers=_ids(parts, "function_response"),
            paths=frozenset(each for each in (scope, *named) if each),
            is_long_running=bool(fields.get("long_running_tool_ids")),
        )

    @property
    def ids(self) -> frozenset[str]:
        """Of all calls that it is about."""
        return self.calls | self.answers | self.paths


def _range(compaction: Mapping[str, Any]) -> tuple[float, float] | None:
    start, end = compaction.get("start_timestamp"), compaction.get("end_timestamp")
    if start is None or end is None or compaction.get("compacted_content") is None:
        return None
    return (start, end) if start <= end else None


def _ids(parts: Iterable[Mapping[str, Any]], name: str) -> frozenset[str]:
    found = ((part.get(name) or {}).get("id") for part in parts)
    return frozenset(id_ for id_ in found if id_)


def needed(traces: list[Trace], overlap: int) -> set[int]:
    """The revisions that are needed of a log.

    Args:
        traces: Its events, the oldest first.
        overlap: How many invocations the next summary repeats.
    """
    live = _after_rewinds(traces)
    ranges = [each.covers for each in live if each.covers]
    if not ranges:
        return {each.revision for each in traces}
    firsts = _firsts(traces)
    undone = (firsts.get(each.rewinds) for each in traces if each.rewinds)
    wanted = [traces[at] for at in undone if at is not None]
    wanted += (it for it in traces if it.is_summary or it.rewinds or it.scope)
    answered = frozenset(chain.from_iterable(each.answers for each in live))
    whole = _repeated(live, overlap) | {
        each.invocation_id
        for each in live
        if each.is_long_running or each.calls - answered
    }
    is_covered = _covering(ranges)
    for each in live:
        if not is_covered(each.time) or each.invocation_id in whole:
            wanted.append(each)
    return _with_calls(traces, wanted)


def _covering(ranges: list[tuple[float, float]]) -> Callable[[float], bool]:
    """Whether a time is in one of these ranges, ends included."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    starts = [start for start, _ in joined]

    def is_covered(time: float) -> bool:
        at = bisect_right(starts, time) - 1
        return at >= 0 and time <= joined[at][1]

    return is_covered


def _firsts(traces: list[Trace]) -> dict[str, int]:
    """Where each invocation begins."""
    firsts: dict[str, int] = {}
    for at, each in enumerate(traces):
        if each.invocation_id:
            firsts.setdefault(each.invocation_id, at)
    return firsts


def _after_rewinds(traces: list[Trace]) -> list[Trace]:
    """What is left of a log, as ADK finds it."""
    firsts = _firsts(traces)
    left: list[Trace] = []
    at = len(traces) - 1
    while at >= 0:
        undone = traces[at].rewinds
        if undone is None:
            left.append(traces[at])
        elif firsts.get(undone, at) < at:
            at = firsts[undone]
        at -= 1
    return left[::-1]


def _repeated(live: list[Trace], overlap: int) -> set[str]:
    """The invocations that the next summary of a sliding window repeats."""
    events = [each for each in live if each.scope is None]
    ends = [each.end for each in events if each.end]
    latest: dict[str, float] = defaultdict(float)
    for each in events:
        if each.invocation_id and not each.is_summary:
            latest[each.invocation_id] = max(latest[each.invocation_id], each.time)
    invocations = [*latest]
    new = (
        at for at, id_ in enumerate(invocations) if latest[id_] > (ends or [0.0])[-1]
    )
    first = next(new, len(invocations))
    return {*invocations[max(first - overlap, 0) : first]}


def _with_calls(traces: list[Trace], wanted: list[Trace]) -> set[int]:
    """The revisions of what is wanted, and of what has an id that it names."""
    by_id: dict[str, list[Trace]] = defaultdict(list)
    for each in traces:
        for id_ in each.calls | each.answers:
            by_id[id_].append(each)
    revisions: set[int] = set()
    while wanted:
        each = wanted.pop()
        if each.revision not in revisions:
            revisions.add(each.revision)
            for id_ in each.ids:
                wanted += by_id.pop(id_, ())
    return revisions
