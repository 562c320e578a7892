"""Checks that subscriptions and consumers received the log that is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from chaos.check_log import own_state, states
from chaos.check_shared import known_to_be_stored
from chaos.history import History, Key, Operation, Reader, Received


def check_received(history: History) -> Iterator[str]:
    """Compare what readers received with what is stored."""
    known = known_to_be_stored(history)
    for reader in history.readers:
        yield from _check_contents(reader, history)
        if reader.kind in {"watch", "follow"}:
            yield from _check_once_in_order(reader)
        if reader.kind == "watch":
            yield from _check_complete(reader, history, known)
        if reader.kind == "follow" and reader.state is not None:
            yield from _check_state(reader, history)
    watches = [each for each in history.readers if each.kind == "watch"]
    for one, other in pairwise(watches):
        yield from _check_same_order(one, other)
    yield from _check_consumers(history, known)


def _check_contents(reader: Reader, history: History) -> Iterator[str]:
    for change in reader.received:
        if change.kind != "appended":
            continue
        append = history.operations.get(change.event or "")
        if append is None or append.key != change.key:
            yield f"{reader.name} received {change}, which nobody has appended"
        elif append.outcome == "failed":
            yield f"{reader.name} received {change}, which has raised {append.error}"
        else:
            yield from _check_revision(reader, change, append, history)


def _check_revision(
    reader: Reader, change: Received, append: Operation, history: History
) -> Iterator[str]:
    revision = append.found.get("revision", change.revision)
    log = history.stored.sessions.get(change.key)
    if log and log.state.get("born") == append.born:
        at = (
            log.events[change.revision - 1 : change.revision] if change.revision else []
        )
        is_stored = [event for _, event, _ in at] == [change.event]
    else:
        is_stored = True
    if revision != change.revision or not is_stored:
        yield f"{reader.name} received {change}, which is not what is stored"


def _check_once_in_order(reader: Reader) -> Iterator[str]:
    """Each session's revisions follow each other, from its creation to its end."""
    at: dict[Key, int] = {}
    for change in reader.received:
        key, revision = change.key, change.revision or 0
        match change.kind:
            case "created" if key in at:
                yield f"{reader.name} received {change}, of a session that was there"
            case "appended" if at.get(key, revision - 1) != revision - 1:
                yield f"{reader.name} received {change} after revision {at[key]}"
        if change.kind == "deleted":
            at.pop(key, None)
        elif change.kind != "state":
            at[key] = revision


def _check_complete(reader: Reader, history: History, known: set[str]) -> Iterator[str]:
    if reader.ended != "end":
        return
    received = {each.event for each in reader.received}
    for name in known - received:
        append = history.operations.get(name)
        if append and append.kind == "append" and append.start > reader.ready:
            yield f"{reader.name} did not receive {name}"


def _check_state(reader: Reader, history: History) -> Iterator[str]:
    """Compare what a follower has put together with the session as it was, or is."""
    last = max((each.revision or 0 for each in reader.received), default=0)
    log = (
        history.stored.sessions.get(reader.received[0].key) if reader.received else None
    )
    born = (reader.state or {}).get("born")
    if log is None or born is None or log.state.get("born") != born:
        return
    shown = states(log, history)
    state = shown[last] if last < len(shown) else {}
    if reader.ended == "end":
        state = dict(log.state)
        for prefix, scope in (("app:", log.key[:1]), ("user:", log.key[:2])):
            if shared := history.stored.shared.get(scope):
                state |= {prefix + key: value for key, value in shared.state.items()}
    received = reader.state or {}
    if (received if reader.ended == "end" else own_state(received)) != state:
        yield f"{reader.name} has put together {received}, which should be {state}"


def _check_same_order(one: Reader, other: Reader) -> Iterator[str]:
    """Both received what both received in the same order."""
    places = {
        each.event: place for place, each in enumerate(one.received) if each.event
    }
    latest = -1
    for each in other.received:
        place = places.get(each.event, -1) if each.event else -1
        if -1 < place < latest:
            yield f"{one.name} and {other.name} received {each} in another order"
            return
        latest = max(latest, place)


def _check_consumers(history: History, known: set[str]) -> Iterator[str]:
    """All readers under a consumer's name together received everything, in order."""
    readers = [each for each in history.readers if each.kind == "consume"]
    names = {each.name.partition("@")[0] for each in readers}
    for name in sorted(names):
        mine = [each for each in readers if each.name.partition("@")[0] == name]
        received = {each.event for reader in mine for each in reader.received}
        for event in known - received:
            append = history.operations.get(event)
            if append and append.kind == "append" and not _may_be_gone(append, history):
                yield f"consumer {name} did not receive {event}"
        yield from _check_commits(mine)


def _may_be_gone(append: Operation, history: History) -> bool:
    """True if its session was deleted: a replay of the log may have come later."""
    log = history.stored.sessions.get(append.key)
    return log is None or log.state.get("born") != append.born


def _check_commits(readers: Iterable[Reader]) -> Iterator[str]:
    """Check that nothing committed comes again, and the rest in order."""
    committed: set[str] = set()
    for reader in sorted(readers, key=lambda each: each.ready):
        at: dict[Key, int] = {}
        for change in reader.received:
            if change.kind == "deleted":
                at.pop(change.key, None)
            if change.kind != "appended" or change.event is None:
                continue
            if change.event in committed:
                yield f"{reader.name} received {change}, after its commit"
            if change.key in at and change.revision != at[change.key] + 1:
                yield f"{reader.name} received {change} after revision {at[change.key]}"
            at[change.key] = change.revision or 0
        done = max(reader.committed, default=0)
        committed.update(each.event for each in reader.received[:done] if each.event)
