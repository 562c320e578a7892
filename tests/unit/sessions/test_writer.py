"""A writer commits what waits together, in order, in time and in the room there is."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.writers import LIMIT, Database, Gate, until, writer_of

from mongo_session_service.errors import StorageUnavailableError
from mongo_session_service.model.records import (
    Append,
    Marker,
    NewSession,
    ScopedState,
    SessionKey,
)
from mongo_session_service.sessions.batch import (
    app_updates,
    session_updates,
    user_updates,
)
from mongo_session_service.sessions.writer import (
    MAX_ALONE,
    MAX_BATCHES,
    MAX_BYTES,
    MAX_WRITES,
    MIN_HALF,
    Writer,
)
from mongo_session_service.storage.statements import LockedError, RefusedError


class Session:
    """A session in a caller's hand."""

    def __init__(self, name: str, revision: int = 0) -> None:
        self.key = SessionKey("app", "user", name)
        self.marker = Marker(revision, 1.0)


def start(
    writer: Writer,
    target: Session,
    event_id: str = "",
    *,
    size: int = 1,
    left: float = LIMIT,
    **delta: dict[str, Any],
) -> asyncio.Future[Marker | None]:
    """Begin to append an event, with a delta to the state of each scope."""
    append = Append(
        target.key,
        1.0,
        {"id": event_id or target.key.session_id},
        is_wrapped=False,
        is_hooked=False,
        delta=ScopedState(**delta),
        encoded=bytes(size),
    )
    started = time.monotonic() - LIMIT + left
    return asyncio.ensure_future(writer.write(append, target.marker, target, started))


async def test_appends_to_different_sessions_go_together() -> None:
    """A batch has as many as wait, up to as many as are allowed."""
    gate = Gate()
    database = Database(gate.pass_through)
    writer = writer_of(database)
    first = start(writer, Session("first"))
    await until(lambda: gate.waiting == ["first"])
    calls = [start(writer, Session(str(n))) for n in range(MAX_WRITES + 5)]
    await asyncio.wait(calls, timeout=0)
    gate.open()
    await asyncio.gather(first, *calls)

    assert database.stored[0] == ["first"]
    assert sorted(database.in_order) == sorted(
        ["first", *map(str, range(MAX_WRITES + 5))]
    )
    assert len(database.stored) == 3


async def test_appends_through_one_session_follow_each_other() -> None:
    """Several appends of one Session object share a batch, each after the other."""
    database, session = Database(), Session("s", revision=4)
    writer = writer_of(database)
    markers = await asyncio.gather(*(start(writer, session, str(n)) for n in range(3)))

    assert [each and each.revision for each in markers] == [5, 6, 7]
    assert database.stored == [["0", "1", "2"]]
    assert [each.expected.revision for each in database.batches[0]] == [4, 5, 6]


async def test_another_copy_waits_and_is_not_overtaken() -> None:
    """An append through another copy waits, and all later ones of its session too."""
    database = Database()
    writer, one, other = writer_of(database), Session("s"), Session("s")
    sessions = (one, other, one, Session("t"))
    await asyncio.gather(
        *(start(writer, each, str(n)) for n, each in enumerate(sessions))
    )

    assert database.stored == [["0", "3"], ["1"], ["2"]]


async def test_a_batch_is_bounded_in_bytes_unless_it_is_one_append() -> None:
    """Large events go in batches of their own."""
    database = Database()
    writer = writer_of(database)
    sizes = {"small": 1, "huge": MAX_BYTES + 1, "large": MAX_BYTES - 1}
    await asyncio.gather(
        *(start(writer, Session(name), size=size) for name, size in sizes.items())
    )

    assert sorted(database.stored) == [["huge"], ["small", "large"]]


async def test_a_second_batch_changes_nothing_of_the_first() -> None:
    """Whoever changes what is busy waits; all others are committed meanwhile."""
    gate = Gate()
    database = Database(gate.pass_through)
    writer, busy = writer_of(database), Session("busy")
    calls = [start(writer, busy, "first", app={"k": 1})]
    await until(lambda: gate.waiting == ["first"])
    calls += [
        start(writer, busy, "same session"),
        start(writer, Session("a"), "same app", app={"k": 1}),
        start(writer, Session("b"), "free"),
    ]
    await until(lambda: "free" in gate.waiting)
    assert gate.waiting == ["first", "free"]
    gate.open()
    await asyncio.gather(*calls)

    assert database.in_order[:2] == ["first", "free"]


async def test_many_that_have_nothing_in_common_go_in_two_batches() -> None:
    """What waits is halved if that makes two large batches."""
    gate = Gate()
    database = Database(gate.pass_through)
    writer = writer_of(database)
    calls = [start(writer, Session(str(n))) for n in range(2 * MIN_HALF)]
    await until(lambda: len(gate.waiting) == 2 * MIN_HALF)
    gate.open()
    await asyncio.gather(*calls)

    assert [len(each) for each in database.stored] == [MIN_HALF, MIN_HALF]


async def test_who_changes_more_is_not_passed_for_ever() -> None:
    """What the first who has to wait waits for is kept free for it."""
    gate = Gate()
    database = Database(gate.pass_through)
    writer = writer_of(database)
    calls = [start(writer, Session("1"), "app", app={"k": 1})]
    await until(lambda: gate.waiting == ["app"])
    calls += [
        start(writer, Session("2"), "both", app={"k": 1}, user={"k": 1}),
        start(writer, Session("3"), "user", user={"k": 1}),
        start(writer, Session("4"), "none"),
    ]
    await until(lambda: "none" in gate.waiting)
    assert "user" not in gate.waiting
    gate.open()
    await asyncio.gather(*calls)

    order = database.in_order
    assert order.index("both") < order.index("user")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=20))
def test_every_append_has_its_turn_in_order(appends: list[tuple[str, int]]) -> None:
    """Nobody is lost or served twice, and each session's appends keep their order."""

    async def write_all() -> list[str]:
        database = Database()
        writer = writer_of(database)
        sessions = {each: Session(each[0]) for each in appends}
        await asyncio.gather(
            *(
                start(writer, sessions[each], f"{each[0]}{number}")
                for number, each in enumerate(appends)
            )
        )
        return database.in_order

    stored = asyncio.run(write_all())
    for name in "abc":
        wanted = [f"{key}{n}" for n, (key, _) in enumerate(appends) if key == name]
        assert [each for each in stored if each[0] == name] == wanted
    assert len(stored) == len(appends)


async def test_a_batch_is_one_update_per_document() -> None:
    """Deltas of a batch are merged per session, user and app; the later one wins."""
    database, one, other = Database(), Session("1", revision=7), Session("2")
    writer = writer_of(database)
    deltas: list[tuple[Session, dict[str, int]]]
    deltas = [(one, {"k": 1, "a": 1}), (other, {"k": 2}), (one, {"k": 3, "b": 3})]
    await asyncio.gather(
        *(start(writer, it, app=new, user=new, session=new) for it, new in deltas)
    )
    (planned,) = database.batches
    writes: list[Append | NewSession] = [each.write for each in planned]

    first, second = session_updates(planned, {}, {})
    assert first.filter == {
        "_id": one.key.id,
        "revision": 7,
        "create_time": 1.0,
        "ttl": None,
        "expire_time": None,
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


async def test_an_append_to_locked_state_stays_behind_one_that_is_not_begun() -> None:
    """The second of two appends sets locked state, and the first waits for a batch."""
    gate, is_locked, has_met = Gate(), True, asyncio.Event()

    async def meet(ids: list[str]) -> None:
        if is_locked and "locked" in ids:
            has_met.set()
            raise LockedError("app_states")
        if ids[0].startswith("slow"):
            await gate.pass_through(ids)

    database, session = Database(meet), Session("session")
    writer = writer_of(database)
    locked = start(writer, Session("locked"), "locked", app={"it": 1})
    await has_met.wait()
    slow = []
    for number in range(MAX_BATCHES):
        slow.append(start(writer, Session(f"slow {number}")))
        await until(lambda: len(gate.waiting) == len(slow))
    both = [start(writer, session, "1"), start(writer, session, "2", app={"it": 1})]
    await asyncio.wait(both, timeout=0)
    is_locked = False
    await asyncio.wait_for(locked, LIMIT)
    gate.open()
    await asyncio.wait_for(asyncio.gather(*slow, *both), LIMIT)

    stored = database.in_order
    assert stored.index("1") < stored.index("2")


async def test_an_append_that_is_tried_again_is_not_overtaken() -> None:
    """One half of a batch ends with the time of a call, and is tried again."""

    async def meet(ids: list[str]) -> None:
        if len(ids) > 2:
            raise RefusedError
        if "late" in ids:
            await asyncio.sleep(2 * SOON)
            raise StorageUnavailableError("too late")

    database, session = Database(meet), Session("session")
    writer = writer_of(database)
    late = start(writer, Session("late"), left=SOON)
    others = [start(writer, session, "1"), start(writer, session, "2")]
    others.append(start(writer, Session("x")))
    answers = await asyncio.gather(late, *others, return_exceptions=True)

    assert isinstance(answers[0], StorageUnavailableError)
    assert all(isinstance(each, Marker) for each in answers[1:])
    stored = database.in_order
    assert [each for each in stored if each != "x"] == ["1", "2"]


SOON = 0.2


@pytest.mark.parametrize("is_locked", [True, False])
async def test_a_call_ends_while_all_others_hang(*, is_locked: bool) -> None:
    """It waits for a lock, or for a batch, and began before those that hang."""
    gate, met = Gate(), set[str]()

    async def meet(ids: list[str]) -> None:
        if is_locked and not met.issuperset(ids):
            met.update(ids)
            raise LockedError("sessions")
        await gate.pass_through(ids)

    writer = writer_of(Database(meet))
    hanging = []
    for number in range(MAX_ALONE if is_locked else MAX_BATCHES):
        hanging.append(start(writer, Session(str(number))))
        await until(lambda: len(gate.waiting) == len(hanging))
    late = start(writer, Session("late"), left=SOON)
    with pytest.raises(StorageUnavailableError):
        await asyncio.wait_for(asyncio.shield(late), LIMIT / 3)

    assert not any(each.done() for each in hanging)
    for each in asyncio.all_tasks() - {asyncio.current_task()}:
        each.cancel()


async def admit_and_start(writer: Writer, name: str, size: int) -> Marker | None:
    await writer.buffer.await_room()
    return await start(writer, Session(name), size=size)


async def test_large_writes_wait_for_room() -> None:
    """Beyond the limit of bytes a write is not encoded until others have ended."""
    gate = Gate()
    writer = writer_of(Database(gate.pass_through), queued_bytes=100)
    sizes = [60, 61, 62, 1, 2]
    calls = [
        asyncio.ensure_future(admit_and_start(writer, str(n), size))
        for n, size in enumerate(sizes[:2])
    ]
    await until(lambda: gate.waiting == ["0", "1"])
    calls += [
        asyncio.ensure_future(admit_and_start(writer, str(n), sizes[n]))
        for n in range(2, 5)
    ]
    for _ in range(50):
        await asyncio.sleep(0)
    assert gate.waiting == ["0", "1"]
    gate.open()
    await asyncio.gather(*calls)

    assert gate.waiting == ["0", "1", "2", "3", "4"]


async def test_who_gives_up_leaves_no_gap() -> None:
    """A cancelled call takes no room, and those after it still get theirs."""
    gate = Gate()
    database = Database(gate.pass_through)
    writer = writer_of(database, queued_writes=1)
    calls = [asyncio.ensure_future(admit_and_start(writer, "0", 1))]
    await until(lambda: gate.waiting == ["0"])
    calls += [asyncio.ensure_future(admit_and_start(writer, str(n), 1)) for n in (1, 2)]
    calls.append(asyncio.ensure_future(admit_and_start(writer, "3", 1)))
    await asyncio.wait(calls, timeout=0)
    calls[1].cancel()
    await asyncio.wait(calls, timeout=0)
    gate.open()
    calls[2].cancel()  # whether it was woken or not
    await asyncio.wait(calls)

    assert database.stored == [["0"], ["3"]]


async def test_many_at_once_let_others_run() -> None:
    """Of many writes each iteration encodes a few, in the order of the calls."""
    writer, begun, moments = writer_of(Database()), list[int](), list[float]()

    async def encode(number: int) -> None:
        await writer.buffer.await_room()
        begun.append(number)

    async def watch() -> None:
        while True:
            moments.append(len(begun))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(encode(number) for number in range(600)))
    watching.cancel()

    assert begun == [*range(600)]
    assert max(after - before for before, after in pairwise(moments)) <= MAX_WRITES
