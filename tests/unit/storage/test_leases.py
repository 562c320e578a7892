"""A write past a dead holder."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext, suppress
from typing import Any, cast

import pytest
from pymongo.errors import AutoReconnect

from mongo_session_service.storage import lease
from mongo_session_service.storage.lease import Lease


@pytest.mark.parametrize("error", [None, AutoReconnect()])
async def test_a_write_ends_although_the_driver_swallows_a_cancellation(
    monkeypatch: pytest.MonkeyPatch, error: AutoReconnect | None
) -> None:
    """Whoever acquires a lease waits for the look for dead holders, which is over."""
    is_looking, swallows_once = asyncio.Event(), suppress(asyncio.CancelledError)

    async def look(_: Lease) -> None:
        swallowing = nullcontext() if is_looking.is_set() else swallows_once
        is_looking.set()
        with swallowing:
            await asyncio.Event().wait()
        if error is not None:
            raise error

    monkeypatch.setattr(lease, "_LOCKED_AFTER", 0)
    monkeypatch.setattr(Lease, "end_dead_holder", look)
    acquired = Lease(cast("Any", None), "leases", "name")

    async with asyncio.timeout(5):
        assert await acquired.write_past_dead_holder(is_looking.wait())
