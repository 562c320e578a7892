"""The judge of the runs under faults, on records made by hand: it can find fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from chaos.check import check
from chaos.history import (
    History,
    Key,
    Operation,
    Reader,
    Received,
    Shared,
    Stored,
    StoredLog,
)

KEY = Key("app", "user", "s")
OTHER = Key("app", "user", "gone")


def put(target: object, **fields: object) -> None:
    for name, value in fields.items():
        setattr(target, name, value)


def called(
    name: str, kind: str, start: float, key: Key = KEY, **more: object
) -> Operation:
    """A call that has returned half a second later."""
    call = Operation(name, "loop", kind, key, start, end=start + 0.5, outcome="ok")
    put(call, **more)
    return call


def appended(name: str, revision: int, start: float, **more: object) -> Operation:
    delta = {"last": name, "app:k": name}
    found = {"revision": revision}
    return called(name, "append", start, born="c", delta=delta, found=found, **more)  # type: ignore[arg-type]


def flawless() -> History:
    """Two appends and a read; another session that was deleted; two readers."""
    shown = {"born": "c", "last": "a1", "app:k": "a1"}
    found = {"born": "c", "revision": 1, "state": shown, "events": ["a1"]}
    calls = [
        called("c", "create", 1, delta={"born": "c"}, is_owner=True),
        appended("a1", 1, 2, is_owner=True),
        called("g", "get", 3, found=found),
        appended("a2", 2, 4),
        called("c2", "create", 1, OTHER, delta={"born": "c2"}),
        called("d", "delete", 2, OTHER),
        called("g2", "get", 3, OTHER),
    ]
    events = [
        (1, "a1", {"last": "a1", "app:k": "a1"}),
        (2, "a2", {"last": "a2", "app:k": "a2"}),
    ]
    received = [
        Received("created", KEY, 0, None),
        Received("appended", KEY, 1, "a1"),
        Received("appended", KEY, 2, "a2"),
    ]
    state = {"born": "c", "last": "a2", "app:k": "a2"}
    return History(
        {each.name: each for each in calls},
        [
            Reader("w1", "watch", 0, list(received), ended="end"),
            Reader("w2", "watch", 0, list(received), ended="end"),
            Reader("f", "follow", 0, list(received), ended="end", state=state),
            Reader("all@1", "consume", 0, received[1:2], committed=[1]),
            Reader("all@2", "consume", 5, received[2:]),
        ],
        Stored(
            {KEY: StoredLog(KEY, {"born": "c", "last": "a2"}, 2, events)},
            shared={("app",): Shared({"k": "a2"}, 2)},
        ),
    )


def log(history: History) -> StoredLog:
    return history.stored.sessions[KEY]


def found(history: History) -> dict[str, Any]:
    """What the read shows."""
    return history.operations["g"].found


def lose_an_event(history: History) -> None:
    log(history).events.pop()
    log(history).revision = 1
    log(history).state["last"] = "a1"


def store_twice(history: History) -> None:
    log(history).events.append((3, "a2", log(history).events[1][2]))
    log(history).revision = 3


def swap(history: History) -> None:
    events = log(history).events
    events[:] = [(1, *events[1][1:]), (2, *events[0][1:])]


def leave_a_gap(history: History) -> None:
    log(history).events[1] = (3, *log(history).events[1][1:])


def tell_what_failed(history: History) -> None:
    history.operations["a3"] = appended("a3", 3, 9, outcome="failed")
    history.readers[0].received.append(Received("appended", KEY, 3, "a3"))


GONE = {"born": "c2", "revision": 0, "state": {"born": "c2"}, "events": []}
"""What a read shows of a session that was deleted."""
FAULTS: list[tuple[Callable[[History], object], str]] = [
    (lose_an_event, "is not stored at revision 2"),
    (store_twice, "stored twice"),
    (swap, "began when it had returned"),
    (leave_a_gap, "not dense"),
    (lambda it: log(it).state.update(last="a1"), "not what its events come to"),
    (lambda it: put(it.operations["a2"], outcome="failed"), "but has raised"),
    (lambda it: it.stored.sessions.pop(KEY), "its session is not stored"),
    (
        lambda it: it.stored.sessions.update(
            {OTHER: StoredLog(OTHER, {"born": "c2"}, 0, [])}
        ),
        "is there after its delete",
    ),
    (lambda it: it.stored.orphans.append("x"), "without session"),
    (lambda it: it.stored.remnants.append("x"), "left by a delete"),
    (lambda it: put(it.stored, open_transactions=1), "are open"),
    (lambda it: put(it.stored.shared["app",], revision=3), "written 3 times"),
    (lambda it: it.stored.shared["app",].state.update(k="a1"), "no serial order"),
    (lambda it: it.stored.shared["app",].state.clear(), "is not stored, but"),
    (
        lambda it: put(
            it.operations["a1"], outcome="failed", error="StaleSessionError"
        ),
        "unreasonably",
    ),
    (lambda it: put(it.operations["g"], start=6, end=7), "shows revision 1, after a2"),
    (lambda it: found(it)["state"].update(last="a2"), "not revision 1's"),
    (lambda it: found(it)["state"].update({"app:k": "a2"}), "nobody has set by then"),
    (lambda it: found(it).update(events=["a2"]), "other events"),
    (lambda it: found(it).clear(), "does not find"),
    (lambda it: put(it.operations["g2"], found=GONE), "after d"),
    (lambda it: it.readers[0].received.pop(), "w1 did not receive a2"),
    (
        lambda it: it.readers[0].received.append(it.readers[0].received[-1]),
        "after revision 2",
    ),
    (
        lambda it: it.readers[1].received.append(it.readers[1].received.pop(1)),
        "in another order",
    ),
    (tell_what_failed, "which has raised"),
    (
        lambda it: it.readers[0].received.append(Received("appended", OTHER, 1, "a2")),
        "nobody has appended",
    ),
    (
        lambda it: put(it.readers[2], state={"born": "c", "last": "a1"}),
        "has put together",
    ),
    (lambda it: it.readers[4].received.clear(), "consumer all did not receive a2"),
    (
        lambda it: it.readers[4].received.insert(0, it.readers[3].received[0]),
        "after its commit",
    ),
]


def test_a_flawless_history_is_found_to_be_so() -> None:
    """Nobody is accused who has done nothing."""
    assert check(flawless()) == []


@pytest.mark.parametrize(
    ("spoil", "complaint"), FAULTS, ids=[complaint for _, complaint in FAULTS]
)
def test_each_fault_is_found(
    spoil: Callable[[History], object], complaint: str
) -> None:
    """Of every kind of fault the judge complains, in words that name it."""
    history = flawless()
    spoil(history)

    assert complaint in "\n".join(check(history))


@pytest.mark.parametrize("outcome", ["ok", "failed", "unknown"])
def test_an_append_of_unknown_outcome_may_be_stored_or_not(outcome: str) -> None:
    """An append without answer is right either way; one with an answer is not."""
    history = flawless()
    late = appended("a3", 3, 9, outcome=outcome, end=float("inf"))
    history.operations["a3"] = late
    absent = check(history)

    log(history).events.append((3, "a3", late.delta))
    log(history).revision, log(history).state["last"] = 3, "a3"
    shared = history.stored.shared["app",]
    shared.state["k"], shared.revision = "a3", 3
    received = Received("appended", KEY, 3, "a3")
    for reader in history.readers:
        if not reader.name.startswith("all@1"):
            reader.received.append(received)
        if reader.state:
            reader.state |= late.delta
    present = check(history)

    assert (absent == [], present == []) == {
        "ok": (False, True),
        "failed": (True, False),
        "unknown": (True, True),
    }[outcome]
