from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from faults import victim_uri

from mongo_session_service import MongoSessionService


@pytest.fixture
async def victim(mongodb_uri: str, database: str) -> AsyncIterator[MongoSessionService]:
    """A service whose commands ``faults.failing`` can make fail."""
    uri = victim_uri(mongodb_uri)
    async with MongoSessionService(uri, database=database) as service:
        yield service
