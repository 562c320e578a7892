"""Tasks that are started again when they die."""

from __future__ import annotations

import asyncio

import pytest

from mongo_session_service.storage.tasks import keep_running


async def test_a_cancellation_that_nobody_asked_for_ends_no_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged, and the task started again; one that is cancelled ends."""
    runs = 0
    is_again = asyncio.Event()

    async def run() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise asyncio.CancelledError
        is_again.set()
        await asyncio.Event().wait()

    task = keep_running("The work", run)
    await is_again.wait()
    assert "The work died of CancelledError" in caplog.text
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), runs) == (True, 2)
