"""Writes of one event loop wait for room and for each other, and none for ever."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

from support.writers import Database, Gate, until, writer_of

from mongo_session_service.model.records import (
    Append,
    Marker,
    ScopedState,
    SessionKey,
)
from mongo_session_service.sessions.writer import MAX_WRITES, Writer


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
    **delta: dict[str, Any],
) -> asyncio.Future[Marker | None]:
    """Begin to append an event, with a delta to the state of each scope."""
    append = Append(
        target.key,
        1.0,
        {"id": event_id or target.key.session_id},
        flags={},
        delta=ScopedState(**delta),
        encoded=bytes(size),
        size=size,
    )
    return asyncio.ensure_future(writer.write(append, target.marker, target))


async def test_an_append_of_much_state_is_not_overtaken_for_ever() -> None:
    """Later appends leave free the documents for which the first one waits."""
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


async def test_a_cancelled_append_takes_no_room() -> None:
    """Appends after it still get theirs."""
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


async def test_other_tasks_run_while_many_writes_are_encoded() -> None:
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
