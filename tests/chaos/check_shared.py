"""Checks that app and user state are the result of a serial order of their writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from chaos.history import History, Operation, Shared

Scope = tuple[str, ...]


def check_shared(history: History) -> Iterator[str]:
    """Find faults with the state that sessions share."""
    committed, maybe = _writers(history)
    before: dict[str, set[str]] = defaultdict(set)
    for scope, shared in history.stored.shared.items():
        yield from _check_scope(scope, shared, committed[scope], maybe[scope], before)
    for scope in committed.keys() - history.stored.shared.keys():
        yield f"{scope}: nothing is stored of {len(committed[scope])} writes"
    yield from _check_order(history, before)


def known_to_be_stored(history: History) -> set[str]:
    """The creates and appends that are committed, whatever their callers know."""
    known = {
        operation.name
        for operation in history.operations.values()
        if operation.kind in {"create", "append"} and operation.outcome == "ok"
    }
    for log in history.stored.sessions.values():
        known.update(event for _, event, _ in log.events)
        known.add(log.state.get("born", ""))
    for reader in history.readers:
        known.update(received.event for received in reader.received if received.event)
    # Who has appended to a session shows that it was created.
    return known | {
        history.operations[name].born for name in known if name in history.operations
    }


def _writers(
    history: History,
) -> tuple[dict[Scope, list[Operation]], dict[Scope, list[Operation]]]:
    """The writes to each scope, and those that may have been."""
    known = known_to_be_stored(history)
    committed: dict[Scope, list[Operation]] = defaultdict(list)
    maybe: dict[Scope, list[Operation]] = defaultdict(list)
    for operation in history.operations.values():
        if operation.kind not in {"create", "append"}:
            continue
        writers = committed if operation.name in known else maybe
        if operation.outcome == "failed":
            continue
        for prefix, scope in (
            ("app:", operation.key[:1]),
            ("user:", operation.key[:2]),
        ):
            if any(key.startswith(prefix) for key in operation.delta):
                writers[scope].append(operation)
    return committed, maybe


def _check_scope(
    scope: Scope,
    shared: Shared,
    committed: list[Operation],
    maybe: list[Operation],
    before: dict[str, set[str]],
) -> Iterator[str]:
    """Check one scope; collect in ``before`` who must have come before the last."""
    prefix = "app:" if len(scope) == 1 else "user:"
    if not len(committed) <= shared.revision <= len(committed) + len(maybe):
        yield (
            f"{scope}: written {shared.revision} times, by {len(committed)} writers"
            f" and perhaps {len(maybe)} more"
        )
    possible = {each.name: each for each in [*committed, *maybe]}
    for key, value in shared.state.items():
        last = possible.get(value)
        if last is None or last.delta.get(prefix + key) != value:
            yield f"{scope}: nobody has set {key} to {value!r}"
            continue
        before[last.name].update(
            each.name
            for each in committed
            if prefix + key in each.delta and each is not last
        )
    for each in committed:
        for key in each.delta:
            if key.startswith(prefix) and key[len(prefix) :] not in shared.state:
                yield f"{scope}: {key} is not stored, but {each.name} has set it"


def _check_order(history: History, before: dict[str, set[str]]) -> Iterator[str]:
    """True if an order of all writes agrees with each constraint.

    Of two calls, one of which had returned when the other began, that one is first; so
    it is with two events of a session, by their revision; and whoever has set what is
    stored in the end comes after all others that have set the same.
    """
    order: TopologicalSorter[str] = TopologicalSorter()
    for last, others in before.items():
        order.add(last, *others)
    for log in history.stored.sessions.values():
        names = [log.state.get("born", ""), *(event for _, event, _ in log.events)]
        for earlier, later in pairwise(names):
            order.add(later, earlier)
    _add_times(history, order)
    try:
        order.prepare()
    except CycleError as error:
        cycle = [name for name in error.args[1] if not name.startswith("time ")]
        yield f"shared state is of no serial order: {cycle[:10]}"


def _add_times(history: History, order: TopologicalSorter[str]) -> None:
    """Have calls follow each other in time, by way of one chain of the ends."""
    writes = [
        each
        for each in history.operations.values()
        if each.kind in {"create", "append"} and each.outcome != "failed"
    ]
    moments = [(each.end, 0, each.name) for each in writes if each.outcome == "ok"]
    moments += [(each.start, 1, each.name) for each in writes]
    moment = ""
    for at, is_start, name in sorted(moments):
        if is_start:
            if moment:
                order.add(name, moment)
        else:
            latest, moment = moment, f"time {at} {name}"
            order.add(moment, name, *([latest] if latest else []))
