"""A database that nobody has set up; other tests of the contract use some again."""

from __future__ import annotations

import pytest

from mongo_session_service import MongoSessionService
from mongo_session_service.schema.setup import missing_indexes
from mongo_session_service.service import backends_of


@pytest.fixture
def database(new_database: str) -> str:
    """A database that is not there before."""
    return new_database


async def test_a_first_write_creates_the_indexes(ours: MongoSessionService) -> None:
    """None is missing after it, with every driver."""
    await ours.create_session(app_name="app", user_id="ada")

    backend = await backends_of(ours).backend()
    assert await missing_indexes(backend.storage) == []
