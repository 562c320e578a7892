"""Compactions: which events of a log a model's request, or the next summary, needs.

ADK leaves out of a request what a summary covers by its time, and what was rewound.
What is needed beyond the rest: all summaries, events that a rewind is found by, private
events of tasks, calls that may still be answered with their invocations, and what has
the id of a call that is needed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from math import inf
from operator import itemgetter
from typing import Any, Final

FIELDS: Final = (
    *("timestamp", "invocation_id", "isolation_scope", "branch", "node_info.path"),
    *("long_running_tool_ids", "actions.rewind_before_invocation_id"),
    *("actions.compaction.start_timestamp", "actions.compaction.end_timestamp"),
    *("actions.compaction.compacted_content.role",),
    *("content.parts.function_call.id", "content.parts.function_response.id"),
)
"""The fields of an event that decide whether it is needed."""

SPECIAL: Final = (
    *("isolation_scope", "branch", "long_running_tool_ids", "actions.compaction"),
    "actions.rewind_before_invocation_id",
)
"""Those that an ordinary event has none of: of it, its time and its invocation decide,
and the ids of calls that are in it."""

_TOGETHER: Final = 2000
"""Events looked at in one step, which takes a millisecond at most."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What decides whether an event is needed."""

    revision: int
    time: float
    invocation_id: str
    calls: frozenset[str]
    answers: frozenset[str]
    scope: str | None = None
    is_summary: bool = False
    covers: tuple[float, float] | None = None
    """The times that a summary covers in every request outside of tasks."""
    end: float | None = None
    """When what it sums up ends, of a summary."""
    rewinds: str | None = None
    """The first invocation that it undoes."""
    paths: frozenset[str] = frozenset()
    """Ids of calls that its scope or its branch names."""
    is_long_running: bool = False

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


@dataclass(frozen=True, slots=True)
class Log:
    """What decides which events of a log are needed."""

    events: list[tuple[int, float, str]]
    """The revision, the time and the invocation of each, the oldest first."""
    traces: list[Trace]
    """Of those that are not ordinary or have calls, at least; the oldest first."""

    @classmethod
    def of(cls, traces: list[Trace]) -> Log:
        """The log of which these are the traces."""
        return cls([(it.revision, it.time, it.invocation_id) for it in traces], traces)

    def firsts(self) -> dict[str, int]:
        """The first revision of each invocation."""
        return {id_: revision for revision, _, id_ in reversed(self.events) if id_}


def needed(log: Log, overlap: int) -> Iterator[Iterable[int]]:
    """The revisions that are needed of a log, found step by step, some more than once.

    Args:
        log: The log.
        overlap: How many invocations the next summary repeats.
    """
    rewinds = [each for each in log.traces if each.rewinds]
    firsts = log.firsts() if rewinds else {}
    is_undone = _within(_undone(rewinds, firsts))
    live = [each for each in log.traces if not is_undone(each.revision)]
    ranges = [each.covers for each in live if each.covers]
    if not ranges:
        yield [revision for revision, _, _ in log.events]
        return
    wanted = {firsts[it.rewinds] for it in rewinds if it.rewinds in firsts}
    answered = frozenset(chain.from_iterable(each.answers for each in live))
    whole = _repeated(log, live, is_undone, overlap) | {
        each.invocation_id
        for each in live
        if each.is_long_running or each.calls - answered
    }
    is_covered = _within(ranges)
    events = iter(log.events)
    while page := [*islice(events, _TOGETHER)]:
        wanted.update(
            revision
            for revision, time, invocation_id in page
            if (not is_covered(time) or invocation_id in whole)
            and not is_undone(revision)
        )
        yield ()
    yield wanted
    yield _with_calls(
        log.traces,
        [
            each
            for each in log.traces
            if each.revision in wanted or each.is_summary or each.rewinds or each.scope
        ],
    )


def _within(ranges: Iterable[tuple[float, float]]) -> Callable[[float], bool]:
    """Whether a number is in one of these ranges, ends included."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    starts = [start for start, _ in joined]

    def is_within(number: float) -> bool:
        at = bisect_right(starts, number) - 1
        return at >= 0 and number <= joined[at][1]

    return is_within


def _undone(rewinds: list[Trace], firsts: dict[str, int]) -> Iterator[tuple[int, int]]:
    """The revisions between which a log was rewound, as ADK finds them."""
    before: float = inf
    for each in reversed(rewinds):
        if each.revision < before:
            last = each.revision
            before = min(firsts.get(each.rewinds or "", last), last)
            yield before, last


def _repeated(
    log: Log, live: list[Trace], is_undone: Callable[[float], bool], overlap: int
) -> set[str]:
    """The invocations that the next summary of a sliding window repeats."""
    if not overlap:
        return set()
    others = {it.revision for it in live if it.is_summary or it.scope is not None}
    events = [
        (invocation_id, time)
        for revision, time, invocation_id in log.events
        if invocation_id and revision not in others and not is_undone(revision)
    ]
    latest = dict(sorted(events, key=itemgetter(1)))
    invocation_ids = [*dict(events)]
    ends = [each.end for each in live if each.end and each.scope is None]
    new = (
        at for at, id_ in enumerate(invocation_ids) if latest[id_] > (ends or [0.0])[-1]
    )
    first = next(new, len(invocation_ids))
    return {*invocation_ids[max(first - overlap, 0) : first]}


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
