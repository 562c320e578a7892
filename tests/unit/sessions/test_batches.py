"""Which appends go together, and what each of them expects."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mongo_session_service.model.records import Append, Marker, SessionKey
from mongo_session_service.model.scopes import ScopedState
from mongo_session_service.sessions.batch import (
    app_updates,
    session_updates,
    user_updates,
)
from mongo_session_service.sessions.batches import (
    MAX_BYTES,
    MIN_WRITES,
    Caller,
    halved,
    plan,
    take_batch,
)


class Copy:
    """A caller's copy of a session."""

    def __init__(self, name: str, revision: int = 0) -> None:
        self.key = SessionKey("app", "user", name)
        self.marker = Marker(revision, 1.0)
        self.session = self
        self.started = 0.0
        self.place = None

    def expected(self) -> Marker:
        """What it is at."""
        return self.marker


def caller(copy: Copy, *, size: int = 1, **delta: Any) -> Caller:
    return setter(copy, ScopedState(app=delta, user=delta, session=delta), size)


def setter(copy: Copy, state: ScopedState, size: int = 1) -> Caller:
    encoded = bytes(size)
    append = Append(
        copy.key,
        1.0,
        {},
        is_wrapped=False,
        is_hooked=False,
        delta=state,
        encoded=encoded,
    )
    return Caller(append, copy)  # type: ignore[arg-type]


def test_appends_to_different_sessions_go_together() -> None:
    """A batch has one append of each session, up to as many as are allowed."""
    waiting = deque(caller(Copy(str(number))) for number in range(5))
    everyone = list(waiting)

    assert take_batch(waiting, 3) == everyone[:3]
    assert take_batch(waiting, 3) == everyone[3:]
    assert take_batch(waiting, 3) == []


def test_appends_through_one_copy_follow_each_other() -> None:
    """Several appends of one Session object share a batch, each after the other."""
    copy = Copy("s", revision=4)
    batch = take_batch(deque([caller(copy), caller(copy), caller(copy)]), 9)

    assert [each.expected for each in plan(batch)] == [
        Marker(4, 1.0),
        Marker(5, 1.0),
        Marker(6, 1.0),
    ]


def test_another_copy_waits_and_is_not_overtaken() -> None:
    """An append through another copy waits, and all later ones of its session too."""
    one, other, elsewhere = Copy("s"), Copy("s"), Copy("t")
    first, second, third, fourth = map(caller, (one, other, one, elsewhere))
    waiting = deque([first, second, third, fourth])

    assert take_batch(waiting, 9) == [first, fourth]
    assert take_batch(waiting, 9) == [second]
    assert take_batch(waiting, 9) == [third]


def test_a_batch_is_bounded_in_bytes_unless_it_is_one_append() -> None:
    """Large events go in batches of their own."""
    small, large, huge = (
        caller(Copy(name), size=size)
        for name, size in (("a", 1), ("b", MAX_BYTES - 1), ("c", MAX_BYTES + 1))
    )
    waiting = deque([small, huge, large])

    assert take_batch(waiting, 9) == [small, large]
    assert take_batch(waiting, 9) == [huge]


def test_a_second_batch_changes_nothing_of_the_first() -> None:
    """Whoever changes what is busy waits, and is not overtaken in its session."""
    busy, shared, free, later = (Copy(name) for name in "abcd")
    first = caller(busy)
    waiting = deque(
        [caller(busy), caller(shared, k=1), caller(free), caller(later), caller(busy)]
    )
    everyone = list(waiting)

    assert take_batch(waiting, 9, {*first.documents, ("app",)}) == everyone[2:4]
    assert list(waiting) == [everyone[0], everyone[1], everyone[4]]


def test_who_has_nothing_in_common_goes_in_two_batches() -> None:
    """A batch is halved if that makes two large ones that can be stored together."""
    callers = [caller(Copy(str(number))) for number in range(2 * MIN_WRITES)]
    first, second = halved(callers)
    copy = Copy("s")
    of_one_copy = [caller(copy) for _ in callers]
    of_one_app = [caller(Copy(str(number)), k=1) for number in range(len(callers))]

    assert len(first) == len(second) == MIN_WRITES
    assert first + second == callers
    for batch in (callers[1:], of_one_copy, of_one_app):
        assert halved(batch) == (batch, [])


def test_who_wants_more_is_not_passed_for_ever() -> None:
    """What the first who has to wait waits for is kept free for it."""
    of_app = setter(Copy("1"), ScopedState(app={"k": 1}))
    of_user = setter(Copy("2"), ScopedState(user={"k": 1}))
    of_both = setter(Copy("3"), ScopedState(app={"k": 1}, user={"k": 1}))
    of_none = setter(Copy("4"), ScopedState())
    waiting = deque([of_both, of_app, of_user, of_none])

    assert take_batch(waiting, 9, {*of_app.documents}) == [of_none]
    assert take_batch(waiting, 9, {*of_user.documents}) == []
    assert take_batch(waiting, 9) == [of_both, of_app, of_user]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=20))
def test_every_append_has_its_turn_in_order(appends: list[tuple[str, int]]) -> None:
    """Nobody is lost or served twice, and each session's appends keep their order."""
    copies = {(name, number): Copy(name) for name, number in appends}
    callers = [caller(copies[each]) for each in appends]
    waiting, served = deque(callers), []
    while batch := take_batch(waiting, 4):
        served += batch

    assert len(served) == len(callers)
    for name in "abc":
        in_order = [each for each in callers if each.write.key.session_id == name]
        assert in_order == [
            each for each in served if each.write.key.session_id == name
        ]


def test_a_batch_is_one_update_per_document() -> None:
    """Deltas of a batch are merged per session, user and app; the later one wins."""
    one, other = Copy("1", revision=7), Copy("2")
    planned = plan([caller(one, k=1, a=1), caller(other, k=2), caller(one, k=3, b=3)])
    writes = [write for write, *_ in planned]

    first, second = session_updates(planned)
    assert first.filter == {
        "_id": one.key.id,
        "revision": 7,
        "create_time": 1.0,
        "ttl": None,
        "expire_time": {"$not": {"$lte": planned[0].now}},
    }
    assert first.change["$set"] == {
        "state.k": 3,
        "state.a": 1,
        "state.b": 3,
        "revision": 9,
        "update_time": 1.0,
    }
    assert second.change["$set"]["revision"] == 1
    merged = {"state.k": 3, "state.a": 1, "state.b": 3}
    for (update,) in (app_updates(writes), user_updates(writes)):
        assert update.change == {"$set": merged, "$inc": {"revision": 3}}
