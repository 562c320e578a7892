"""Sliced work: others run meanwhile, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from mongo_session_service.storage import cooperative
from mongo_session_service.storage.cooperative import in_slices


async def test_other_tasks_run_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many times as slices are over, with the collector enabled."""
    monkeypatch.setattr(cooperative, "_SLICE", -1.0)
    monkeypatch.setattr(cooperative, "_ITERATIONS", 1)
    turns: list[object] = []

    async def others() -> None:
        while True:
            turns.append(gc.isenabled())
            await asyncio.sleep(0)

    def results() -> Iterator[int]:
        for number in range(3):
            turns.append(number)
            yield number

    task = asyncio.create_task(others())
    made = await in_slices(results())
    task.cancel()

    assert made == [0, 1, 2]
    assert turns == [0, True, 1, True, 2, True]


async def test_what_is_done_in_time_is_done_at_once() -> None:
    """A short read pays no turn of the event loop."""
    turns: list[None] = []
    asyncio.get_running_loop().call_soon(turns.append, None)

    assert await in_slices(range(100)) == [*range(100)]

    assert turns == []


async def test_an_error_ends_it() -> None:
    """It reaches the caller, and the collector is enabled."""

    def results() -> Iterator[int]:
        yield 1
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011  nothing else can
        await in_slices(results())
    assert gc.isenabled()
