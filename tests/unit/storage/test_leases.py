"""Writes past a dead holder, and the thread that renews."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakValueDictionary

import pytest
from pymongo.errors import AutoReconnect

from mongo_session_service.model.limits import Limits
from mongo_session_service.storage import lease
from mongo_session_service.storage.lease import Lease, LeaseRenewer


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


class _TornOnce(WeakValueDictionary[str, Lease]):
    """Leases that change while they are listed for the first time."""

    is_torn = False

    def values(self) -> Iterator[Lease]:
        if not self.is_torn:
            self.is_torn = True
            raise RuntimeError
        return super().values()


async def test_the_renewer_outlives_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or no lease of the process would be renewed any more."""
    is_renewed = threading.Event()
    monkeypatch.setattr(lease, "_open_database", lambda *_: "database")
    monkeypatch.setattr(lease, "_renew_due", lambda *_: is_renewed.set())
    storage = SimpleNamespace(limits=Limits(lease_renewal_seconds=0.03))
    renewer, held = LeaseRenewer(), Lease(cast("Any", storage), "leases", "name")
    renewer._held = _TornOnce()  # noqa: SLF001

    renewer.keep_renewing(held)
    assert await asyncio.to_thread(is_renewed.wait, 5)
    renewer.stop_renewing(held)
    await renewer.end_thread()
