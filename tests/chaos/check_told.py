"""Checks that subscriptions and consumers were told the log that is stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from chaos.check_log import own_state, states
from chaos.check_shared import known_to_be_stored
from chaos.history import History, Key, Operation, Reader, Told


def check_told(history: History) -> Iterator[str]:
    """Compare what readers were told with what is stored."""
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
    for told in reader.told:
        if told.kind != "appended":
            continue
        append = history.operations.get(told.event or "")
        if append is None or append.key != told.key:
            yield f"{reader.name} was told {told}, which nobody has appended"
        elif append.outcome == "failed":
            yield f"{reader.name} was told {told}, which has raised {append.error}"
        else:
            yield from _check_revision(reader, told, append, history)


def _check_revision(
    reader: Reader, told: Told, append: Operation, history: History
) -> Iterator[str]:
    revision = append.found.get("revision", told.revision)
    log = history.stored.sessions.get(told.key)
    if log and log.state.get("born") == append.born:
        at = log.events[told.revision - 1 : told.revision] if told.revision else []
        is_stored = [event for _, event, _ in at] == [told.event]
    else:
        is_stored = True
    if revision != told.revision or not is_stored:
        yield f"{reader.name} was told {told}, which is not what is stored"


def _check_once_in_order(reader: Reader) -> Iterator[str]:
    """Each session's revisions follow each other, from its creation to its end."""
    at: dict[Key, int] = {}
    for told in reader.told:
        key, revision = told.key, told.revision or 0
        match told.kind:
            case "created" if key in at:
                yield f"{reader.name} was told {told}, of a session that was there"
            case "appended" if at.get(key, revision - 1) != revision - 1:
                yield f"{reader.name} was told {told} after revision {at[key]}"
        if told.kind == "deleted":
            at.pop(key, None)
        elif told.kind != "state":
            at[key] = revision


def _check_complete(reader: Reader, history: History, known: set[str]) -> Iterator[str]:
    if reader.ended != "end":
        return
    told = {each.event for each in reader.told}
    for name in known - told:
        append = history.operations.get(name)
        if append and append.kind == "append" and append.start > reader.ready:
            yield f"{reader.name} was not told of {name}"


def _check_state(reader: Reader, history: History) -> Iterator[str]:
    """Compare what a follower has put together with the session as it was, or is."""
    last = max((each.revision or 0 for each in reader.told), default=0)
    log = history.stored.sessions.get(reader.told[0].key) if reader.told else None
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
    told = reader.state or {}
    if (told if reader.ended == "end" else own_state(told)) != state:
        yield f"{reader.name} has put together {told}, which should be {state}"


def _check_same_order(one: Reader, other: Reader) -> Iterator[str]:
    """Both were told what both were told in the same order."""
    places = {each.event: place for place, each in enumerate(one.told) if each.event}
    latest = -1
    for each in other.told:
        place = places.get(each.event, -1) if each.event else -1
        if -1 < place < latest:
            yield f"{one.name} and {other.name} were told {each} in another order"
            return
        latest = max(latest, place)


def _check_consumers(history: History, known: set[str]) -> Iterator[str]:
    """All readers under a consumer's name together were told everything, in order."""
    readers = [each for each in history.readers if each.kind == "consume"]
    names = {each.name.partition("@")[0] for each in readers}
    for name in sorted(names):
        mine = [each for each in readers if each.name.partition("@")[0] == name]
        told = {each.event for reader in mine for each in reader.told}
        for event in known - told:
            append = history.operations.get(event)
            if append and append.kind == "append" and not _may_be_gone(append, history):
                yield f"consumer {name} was not told of {event}"
        yield from _check_commits(mine)


def _may_be_gone(append: Operation, history: History) -> bool:
    """True if its session was deleted: a replay of the log may have come later."""
    log = history.stored.sessions.get(append.key)
    return log is None or log.state.get("born") != append.born


def _check_commits(readers: Iterable[Reader]) -> Iterator[str]:
    """Check that nothing committed is told again, and the rest in order."""
    committed: set[str] = set()
    for reader in sorted(readers, key=lambda each: each.ready):
        at: dict[Key, int] = {}
        for told in reader.told:
            if told.kind == "deleted":
                at.pop(told.key, None)
            if told.kind != "appended" or told.event is None:
                continue
            if told.event in committed:
                yield f"{reader.name} was told {told}, after its commit"
            if told.key in at and told.revision != at[told.key] + 1:
                yield f"{reader.name} was told {told} after revision {at[told.key]}"
            at[told.key] = told.revision or 0
        done = max(reader.committed, default=0)
        committed.update(each.event for each in reader.told[:done] if each.event)
