"""How many writes an event loop encodes and holds at once."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from mongo_session_service.sessions import intake
from mongo_session_service.sessions.intake import Intake, Place


async def hold(place: Place, size: int, begun: list[int], end: asyncio.Event) -> None:
    async with place:
        place.hold(size)
        begun.append(size)
        await end.wait()


async def idle() -> None:
    """Let every task that can go on do so, for some turns of the loop."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_large_writes_wait_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit of bytes a write waits until others have ended, in order."""
    monkeypatch.setattr(intake, "MAX_BYTES", 100)
    places, begun, end = Intake(), list[int](), [asyncio.Event() for _ in range(5)]
    sizes = [60, 61, 62, 1, 2]
    tasks = [
        asyncio.create_task(hold(places.place(), size, begun, each))
        for size, each in zip(sizes, end, strict=True)
    ]
    await idle()
    assert begun == [60, 61]

    end[0].set()
    await idle()
    assert begun == [60, 61, 62]
    end[1].set()
    end[2].set()
    await idle()
    assert begun == sizes
    for each in end:
        each.set()
    await asyncio.gather(*tasks)
    assert (places.held.writes, places.held.bytes) == (0, 0)


async def test_who_gives_up_leaves_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled call takes no room, and those after it still get theirs."""
    monkeypatch.setattr(intake, "MAX_WRITES", 1)
    places, begun, end = Intake(), list[int](), asyncio.Event()
    tasks = [
        asyncio.create_task(hold(places.place(), size, begun, end)) for size in range(4)
    ]
    await idle()
    tasks[1].cancel()
    await idle()
    end.set()
    tasks[2].cancel()  # whether it was woken or not
    await asyncio.wait(tasks)

    assert begun == [0, 3]
    assert places.held.writes == 0


async def test_what_is_set_aside_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that waits for a lock holds up no other, within a limit of its own."""
    monkeypatch.setattr(intake, "MAX_WRITES", 1)
    places, begun, end = Intake(), list[int](), asyncio.Event()
    async with places.place() as first:
        first.hold(5)
        tasks = [
            asyncio.create_task(hold(places.place(), size, begun, end))
            for size in range(2)
        ]
        await idle()
        assert begun == []
        first.set_aside()
        await idle()
        assert begun == [0]
        assert (places.aside.writes, places.aside.bytes) == (1, 5)
    assert (places.aside.writes, places.aside.bytes) == (0, 0)
    end.set()
    await asyncio.gather(*tasks)


async def test_many_at_once_let_others_run() -> None:
    """Of many writes each turn of the loop encodes a few, in the order of calls."""
    places, begun, moments = Intake(), list[int](), list[float]()

    async def encode(number: int) -> None:
        async with places.place():
            end = time.monotonic() + 0.001  # which encoding takes
            while time.monotonic() < end:
                pass
            begun.append(number)

    async def watch() -> None:
        while True:
            moments.append(len(begun))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(encode(number) for number in range(300)))
    watching.cancel()

    assert begun == [*range(300)]
    assert max(after - before for before, after in pairwise(moments)) <= 40
