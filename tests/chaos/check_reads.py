"""Checks that every read showed a session as it once was, and nothing outdated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from chaos.check_log import deletes_by_key, own_state, states
from chaos.history import History, Key, Operation, StoredLog


def check_reads(history: History) -> Iterator[str]:
    """Find faults with what ``get_session`` has returned."""
    deletes = deletes_by_key(history)
    known = _Known(history)
    gets: dict[Key, list[Operation]] = defaultdict(list)
    for operation in history.operations.values():
        if operation.kind == "get" and operation.outcome == "ok":
            gets[operation.key].append(operation)
    for key, several in gets.items():
        log = history.stored.sessions.get(key)
        shown = states(log, history) if log else []
        for get in several:
            if not get.found:
                yield from known.check_absence(get, deletes[key])
                continue
            yield from known.check_age(get)
            yield from _check_shared(get, history)
            for delete in deletes[key]:
                create = history.operations[get.found["born"]]
                is_over = create.end < delete.start and delete.end < get.start
                if delete.outcome == "ok" and is_over:
                    yield f"{get.name} shows a session after {delete.name}"
            if log and log.state.get("born") == get.found["born"]:
                yield from _check_content(get, log, shown)


def _check_content(
    get: Operation, log: StoredLog, states: list[dict[str, Any]]
) -> Iterator[str]:
    revision = get.found["revision"]
    if revision >= len(states):
        yield f"{get.name} shows revision {revision} of {len(states) - 1}"
        return
    if own_state(get.found["state"]) != states[revision]:
        yield f"{get.name} shows a state that is not revision {revision}'s"
    events = get.found["events"]
    stored = [event for _, event, _ in log.events[:revision]]
    if events != stored[len(stored) - len(events) :]:
        yield f"{get.name} shows other events than are stored"


def _check_shared(get: Operation, history: History) -> Iterator[str]:
    for key, value in get.found["state"].items():
        if ":" not in key:
            continue
        writer = history.operations.get(value)
        mine = 1 if key.startswith("app:") else 2
        if (
            writer is None
            or writer.key[:mine] != get.key[:mine]
            or writer.delta.get(key) != value
            or writer.outcome == "failed"
            or writer.start > get.end
        ):
            yield f"{get.name} shows {key}={value!r}, which nobody has set by then"


class _Known:
    """The acknowledged revisions in an event loop, by a time."""

    def __init__(self, history: History) -> None:
        self._appends: dict[tuple[str, str], list[Operation]] = defaultdict(list)
        self._creates: dict[Key, list[Operation]] = defaultdict(list)
        for each in history.operations.values():
            if each.outcome == "ok" and each.kind == "append":
                self._appends[each.loop, each.born].append(each)
            elif each.outcome == "ok" and each.kind == "create":
                self._creates[each.key].append(each)

    def check_age(self, get: Operation) -> Iterator[str]:
        """True if it shows all that its event loop had stored before."""
        for append in self._appends[get.loop, get.found["born"]]:
            is_before = append.end < get.start
            if is_before and append.found["revision"] > get.found["revision"]:
                yield (
                    f"{get.name} shows revision {get.found['revision']}, after"
                    f" {append.name} had returned with {append.found['revision']}"
                )
                return

    def check_absence(self, get: Operation, deletes: list[Operation]) -> Iterator[str]:
        """True if what it did not find may have been gone."""
        for create in self._creates[get.key]:
            was_there = create.end < get.start and create.loop == get.loop
            excused = any(
                each.end > create.start and each.start < get.end for each in deletes
            )
            if was_there and not excused:
                yield f"{get.name} does not find what {create.name} has created"
