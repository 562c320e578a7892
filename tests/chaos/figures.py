"""The figures of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from chaos.history import Operation
from chaos.run import Outcome
from chaos.sampling import Sample

_PARTS = 5
"""Parts of a run: a leak, or growing latency, shows from one to the next."""


def figures(outcome: Outcome) -> str:
    operations = list(outcome.history.operations.values())
    samples = outcome.samples
    seconds = samples[-1].at if samples else 0
    answers = Counter((each.kind, each.outcome) for each in operations)
    received = sum(len(each.received) for each in outcome.history.readers)
    lines = [
        f"{len(operations):,} calls in {seconds:,.0f} s; {received:,} changes received",
        *(
            f"  {kind:8s} {ok:>9,} ok {answers[kind, 'failed']:>7,} failed"
            f" {answers[kind, 'unknown']:>5,} unknown"
            for kind in ("create", "append", "get", "look", "delete")
            for ok in [answers[kind, "ok"]]
        ),
        "faults",
        *(f"  {count:4d}  {name}" for name, count in sorted(outcome.faults.items())),
        "over time     appends/s   p50 ms   p99 ms   slowest s   MB   connections",
    ]
    for part in range(_PARTS):
        begin, end = seconds * part / _PARTS, seconds * (part + 1) / _PARTS
        appends = [
            each
            for each in operations
            if each.kind == "append"
            and each.outcome == "ok"
            and begin <= each.end - outcome.began < end
        ]
        lines.append(_part(begin, end, appends, samples))
    return "\n".join(lines)


def _part(
    begin: float, end: float, appends: list[Operation], samples: Iterable[Sample]
) -> str:
    took = sorted(each.end - each.start for each in appends) or [0.0]
    mine = [each for each in samples if begin <= each.at <= end]
    memory = sum(each.memory for each in mine) / max(len(mine), 1)
    connections = sum(each.connections for each in mine) / max(len(mine), 1)
    return (
        f"  {begin:4.0f}-{end:4.0f} s {len(appends) / max(end - begin, 1):9,.0f}"
        f" {1000 * took[len(took) // 2]:8.1f} {1000 * took[len(took) * 99 // 100]:8.1f}"
        f" {took[-1]:11.1f} {memory:4.0f} {connections:13.0f}"
    )
