"""The target of an import, beside its source."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mongo_session_service import MongoSessionService


@pytest.fixture
async def copy(mongodb_uri: str, database: str) -> AsyncIterator[MongoSessionService]:
    """Another store, in collections beside those of the first."""
    async with MongoSessionService(
        mongodb_uri, database=database, collection_prefix="copy_"
    ) as copy:
        yield copy
