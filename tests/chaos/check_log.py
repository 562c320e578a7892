"""Compares the stored log with the answers that clients got."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

from chaos.history import History, Key, Operation, StoredLog


def own_state(state: dict[str, Any]) -> dict[str, Any]:
    """The part of a flat state or delta that is the session's own."""
    return {key: value for key, value in state.items() if ":" not in key}


def check_log(history: History) -> Iterator[str]:
    """Find faults with the sessions that are stored, and those that are not."""
    stored = history.stored
    yield from (f"an event without session: {each}" for each in stored.orphans)
    yield from (f"left by a delete: {each}" for each in stored.remnants)
    if stored.open_transactions:
        yield f"{stored.open_transactions} transactions are open"
    deletes = deletes_by_key(history)
    seen: set[str] = set()
    for log in stored.sessions.values():
        yield from _check_session(log, history, deletes[log.key], seen)
    for operation in history.operations.values():
        if operation.kind == "append" and operation.outcome == "ok":
            yield from _check_append(operation, history, deletes[operation.key])
        elif operation.kind == "create" and operation.outcome == "ok":
            yield from _check_create(operation, history, deletes[operation.key])
        yield from _check_ownership(operation)


def deletes_by_key(history: History) -> defaultdict[Key, list[Operation]]:
    """The deletes that may have had an effect."""
    deletes: defaultdict[Key, list[Operation]] = defaultdict(list)
    for operation in history.operations.values():
        if operation.kind == "delete" and operation.outcome != "failed":
            deletes[operation.key].append(operation)
    return deletes


def states(log: StoredLog, history: History) -> list[dict[str, Any]]:
    """The session's own state at each of its revisions."""
    create = history.operations.get(log.state.get("born", ""))
    deltas = [own_state(delta) for _, _, delta in log.events]
    begin = own_state(create.delta) if create else {}
    return list(accumulate(deltas, dict.__or__, initial=begin))


def _check_session(
    log: StoredLog, history: History, deletes: list[Operation], seen: set[str]
) -> Iterator[str]:
    name = "/".join(log.key)
    create = history.operations.get(log.state.get("born", ""))
    if create is None or create.kind != "create" or create.key != log.key:
        yield f"{name}: nobody has created it"
        return
    if create.outcome == "failed":
        yield f"{name}: created by {create.name}, which has raised {create.error}"
    for delete in deletes:
        if delete.outcome == "ok" and create.end < delete.start:
            yield f"{name}: {create.name} is there after its delete {delete.name}"
    revisions = [revision for revision, _, _ in log.events]
    if revisions != list(range(1, len(revisions) + 1)):
        yield f"{name}: its revisions are not dense: {revisions[:20]}"
    if log.revision != len(revisions):
        yield f"{name}: at revision {log.revision} with {len(revisions)} events"
    if (state := states(log, history)[-1]) != log.state:
        yield f"{name}: its state is not what its events come to: {log.state}, {state}"
    yield from _check_events(log, create, history, seen)


def _check_events(
    log: StoredLog, create: Operation, history: History, seen: set[str]
) -> Iterator[str]:
    name = "/".join(log.key)
    latest_start = 0.0
    for revision, event, delta in log.events:
        if event in seen:
            yield f"{name}: {event} is stored twice"
        seen.add(event)
        append = history.operations.get(event)
        if append is None or (append.key, append.born) != (log.key, create.name):
            yield f"{name}: nobody has appended {event}, at {revision}"
            continue
        if append.outcome == "failed":
            yield f"{name}: {event} is stored, but has raised {append.error}"
        if append.delta != delta:
            yield f"{name}: {event} is stored with another delta"
        if append.outcome == "ok" and append.end < latest_start:
            yield f"{name}: {event} comes after one that began when it had returned"
        latest_start = max(latest_start, append.start)


def _check_append(
    append: Operation, history: History, deletes: list[Operation]
) -> Iterator[str]:
    log = history.stored.sessions.get(append.key)
    if log is None or log.state.get("born") != append.born:
        if not _excused(append, deletes):
            yield f"{append.name} has returned, and its session is not stored"
        return
    revision = append.found["revision"]
    at_revision = log.events[revision - 1 : revision]
    if [event for _, event, _ in at_revision] != [append.name]:
        yield f"{append.name} has returned, and is not stored at revision {revision}"


def _check_create(
    create: Operation, history: History, deletes: list[Operation]
) -> Iterator[str]:
    log = history.stored.sessions.get(create.key)
    is_there = log is not None and log.state.get("born") == create.name
    if not is_there and not _excused(create, deletes):
        yield f"{create.name} has returned, and its session is not stored"


def _excused(operation: Operation, deletes: Iterable[Operation]) -> bool:
    return any(delete.end > operation.start for delete in deletes)


def _check_ownership(operation: Operation) -> Iterator[str]:
    """Whoever writes alone gets no error for a write of another."""
    strange = {"StaleSessionError", "SessionNotFoundError", "AlreadyExistsError"}
    if operation.is_owner and operation.error in strange:
        yield f"{operation.name} was refused with {operation.error}, unreasonably"
