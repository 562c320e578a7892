"""A relay: one item at a time, from a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar

import pytest

from mongo_session_service.turns.relay import relayed

place: ContextVar[str] = ContextVar("place", default="outside")

Emit = Callable[[int], Awaitable[None]]


async def test_items_come_when_they_are_wanted() -> None:
    """The producer waits at each item, in a context that its reader never sees."""
    produced: list[int] = []

    async def produce(emit: Emit) -> None:
        place.set("inside")
        for number in range(3):
            produced.append(number)
            await emit(number)
            assert place.get() == "inside"

    read: list[int] = []
    async for item in relayed(produce):
        read.append(item)
        assert produced == read
        assert place.get() == "outside"
    assert read == [0, 1, 2]


async def test_an_error_reaches_the_reader() -> None:
    """After the items before it."""

    async def produce(emit: Emit) -> None:
        await emit(1)
        raise LookupError("no more")

    items = relayed(produce)
    assert await anext(items) == 1
    with pytest.raises(LookupError, match="no more"):
        await anext(items)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_reader_that_leaves_waits_for_the_end(*, is_cancelled: bool) -> None:
    """Closed early or cancelled, it leaves no producer behind, which may clean up."""
    cleaned: list[str] = []
    reading = asyncio.Event()

    async def produce(emit: Emit) -> None:
        try:
            await emit(1)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("cleaned")

    async def read() -> None:
        async with aclosing(relayed(produce)) as items:
            assert await anext(items) == 1
            reading.set()
            if is_cancelled:
                await anext(items)

    reader = asyncio.create_task(read())
    await reading.wait()
    await asyncio.sleep(0)
    if is_cancelled:
        reader.cancel()
    await asyncio.wait([reader])
    assert reader.cancelled() == is_cancelled
    assert cleaned == ["cleaned"]
