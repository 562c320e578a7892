"""The judge of the runs under faults, on records made by hand: it can find fault."""

from __future__ import annotations

from collections.abc import Callable

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


def called(
    name: str, kind: str, start: float, key: Key = KEY, **more: object
) -> Operation:
    """A call that has returned half a second later."""
    call = Operation(name, "loop", kind, key, start, end=start + 0.5, outcome="ok")
    for field, value in more.items():
        setattr(call, field, value)
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


def lose_state(history: History) -> None:
    log(history).state["last"] = "a1"


def store_what_failed(history: History) -> None:
    history.operations["a2"].outcome = "failed"


def lose_a_session(history: History) -> None:
    del history.stored.sessions[KEY]


def keep_what_was_deleted(history: History) -> None:
    history.stored.sessions[OTHER] = StoredLog(OTHER, {"born": "c2"}, 0, [])


def leave_an_orphan(history: History) -> None:
    history.stored.orphans.append("x")


def leave_a_remnant(history: History) -> None:
    history.stored.remnants.append("x")


def leave_a_transaction(history: History) -> None:
    history.stored.open_transactions = 1


def count_shared_state_twice(history: History) -> None:
    history.stored.shared["app",].revision = 3


def undo_shared_state(history: History) -> None:
    history.stored.shared["app",].state["k"] = "a1"


def lose_shared_state(history: History) -> None:
    history.stored.shared["app",].state.clear()


def refuse_the_owner(history: History) -> None:
    call = history.operations["a1"]
    call.outcome, call.error = "failed", "StaleSessionError"


def show_the_past(history: History) -> None:
    history.operations["g"].start = 6
    history.operations["g"].end = 7


def show_another_state(history: History) -> None:
    history.operations["g"].found["state"]["last"] = "a2"


def show_what_comes_later(history: History) -> None:
    history.operations["g"].found["state"]["app:k"] = "a2"


def show_other_events(history: History) -> None:
    history.operations["g"].found["events"] = ["a2"]


def show_nothing(history: History) -> None:
    history.operations["g"].found = {}


def show_what_was_deleted(history: History) -> None:
    shown = {"born": "c2", "revision": 0, "state": {"born": "c2"}, "events": []}
    history.operations["g2"].found = shown


def tell_nothing(history: History) -> None:
    history.readers[0].received.pop()


def tell_twice(history: History) -> None:
    history.readers[0].received.append(history.readers[0].received[-1])


def tell_in_another_order(history: History) -> None:
    history.readers[1].received[1:] = history.readers[1].received[:0:-1]


def tell_what_failed(history: History) -> None:
    history.operations["a3"] = appended("a3", 3, 9, outcome="failed")
    history.readers[0].received.append(Received("appended", KEY, 3, "a3"))


def tell_of_another(history: History) -> None:
    history.readers[0].received.append(Received("appended", OTHER, 1, "a2"))


def follow_astray(history: History) -> None:
    history.readers[2].state = {"born": "c", "last": "a1"}


def consume_too_little(history: History) -> None:
    history.readers[4].received.clear()


def consume_again(history: History) -> None:
    history.readers[4].received.insert(0, history.readers[3].received[0])


FAULTS = [
    (lose_an_event, "is not stored at revision 2"),
    (store_twice, "stored twice"),
    (swap, "began when it had returned"),
    (leave_a_gap, "not dense"),
    (lose_state, "not what its events come to"),
    (store_what_failed, "but has raised"),
    (lose_a_session, "its session is not stored"),
    (keep_what_was_deleted, "is there after its delete"),
    (leave_an_orphan, "without session"),
    (leave_a_remnant, "left by a delete"),
    (leave_a_transaction, "are open"),
    (count_shared_state_twice, "written 3 times"),
    (undo_shared_state, "no serial order"),
    (lose_shared_state, "is not stored, but"),
    (refuse_the_owner, "unreasonably"),
    (show_the_past, "shows revision 1, after a2"),
    (show_another_state, "not revision 1's"),
    (show_what_comes_later, "nobody has set by then"),
    (show_other_events, "other events"),
    (show_nothing, "does not find"),
    (show_what_was_deleted, "after d"),
    (tell_nothing, "w1 did not receive a2"),
    (tell_twice, "after revision 2"),
    (tell_in_another_order, "in another order"),
    (tell_what_failed, "which has raised"),
    (tell_of_another, "nobody has appended"),
    (follow_astray, "has put together"),
    (consume_too_little, "consumer all did not receive a2"),
    (consume_again, "after its commit"),
]


def test_a_flawless_history_is_found_to_be_so() -> None:
    """Nobody is accused who has done nothing."""
    assert check(flawless()) == []


@pytest.mark.parametrize(
    ("spoil", "complaint"), FAULTS, ids=[spoil.__name__ for spoil, _ in FAULTS]
)
def test_each_fault_is_found(spoil: Callable[[History], None], complaint: str) -> None:
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
