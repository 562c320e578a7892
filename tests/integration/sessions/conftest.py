"""A service that forks in small steps."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mongo_session_service import MongoSessionService
from mongo_session_service.testing import Limits


@pytest.fixture
async def stepping(
    mongodb_uri: str, database: str
) -> AsyncIterator[MongoSessionService]:
    """A service that forks in steps of ten events, so that few make a session long."""
    async with MongoSessionService(
        mongodb_uri, database=database, _limits=Limits(fork_step=10)
    ) as service:
        yield service
