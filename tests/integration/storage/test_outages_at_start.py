"""Many callers meet an outage at once, before the service has met its server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from mongo_session_service import MongoSessionService, StorageUnavailableError

IDS = {"app_name": "app", "user_id": "user"}
CALLERS = 20


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port on which connections are made, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("option", ["serverSelectionTimeoutMS", "timeoutMS"])
async def test_callers_share_one_attempt(option: str, silent_port: int) -> None:
    """All fail when the time of one has run out; a later one tries again."""
    uri = f"mongodb://127.0.0.1:{silent_port}/?{option}=1000"
    async with asyncio.timeout(CALLERS / 2):
        service = MongoSessionService(uri)
        for count in (CALLERS, 1):
            errors = await asyncio.gather(
                *(service.get_session(**IDS, session_id="s") for _ in range(count)),
                *(service.create_session(**IDS) for _ in range(count)),
                return_exceptions=True,
            )
            assert {type(each) for each in errors} == {StorageUnavailableError}
            assert len({id(each) for each in errors}) == 2 * count
        await service.close()
