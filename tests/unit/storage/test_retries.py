"""Which failures are retried, and how long a retry waits."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import AutoReconnect, OperationFailure
from pymongo.errors import ConfigurationError as DriverConfigurationError

from mongo_session_service import StorageUnavailableError
from mongo_session_service.storage.failures import (
    Effect,
    is_transient,
    is_turned_away,
    repeat,
    translate_error,
)


def test_a_member_that_is_starting_is_an_outage_that_passes() -> None:
    """It knows no sessions yet, which is not how the deployment is configured."""
    error = DriverConfigurationError(
        "Sessions are not supported by this MongoDB deployment"
    )

    assert is_transient(error)
    assert type(translate_error(error)) is StorageUnavailableError
    other = DriverConfigurationError("Server does not support transactions")
    assert not is_transient(other)


@pytest.mark.parametrize(
    "error",
    [
        OperationFailure("", 9999, {"codeName": "TooManyOpenTransactions"}),
        OperationFailure("", 9999, {"errorLabels": ["SystemOverloadedError"]}),
        *(OperationFailure("", code) for code in (450, 453, 91331, 10045600)),
    ],
)
def test_a_newer_server_that_is_busy_turns_a_command_away(
    error: OperationFailure,
) -> None:
    """By a code, a name or a label: nothing was done, and it may be done soon."""
    assert is_transient(error)
    assert is_turned_away(error)
    assert type(translate_error(error)) is StorageUnavailableError
    assert not is_transient(OperationFailure("", 9999, {"codeName": "Other"}))


async def test_a_failure_does_not_hide_a_cancellation() -> None:
    """Nothing is retried for whom the driver has swallowed a cancellation."""
    is_called, is_retried = asyncio.Event(), asyncio.Event()

    async def swallow_and_fail() -> None:
        if is_called.is_set():
            is_retried.set()
        is_called.set()
        with suppress(asyncio.CancelledError):
            await is_retried.wait()
        raise AutoReconnect

    async with AsyncMongoClient(connect=False) as client:
        retrying = asyncio.create_task(
            repeat(client, swallow_and_fail, Effect.HARMLESS, patient=True)
        )
        await is_called.wait()
        retrying.cancel()
        await asyncio.wait([retrying], timeout=5)

    assert retrying.cancelled()
    assert not is_retried.is_set()
