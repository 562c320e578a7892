"""Data of this schema version is read, and data of a newer one refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from bson import json_util
from pymongo import MongoClient
from support.one_session import IDS

from mongo_session_service import MongoSessionService, SchemaVersionError
from mongo_session_service.schema.setup import SCHEMA_VERSION

LAYOUTS = Path(__file__).parents[2] / "fixtures" / "layouts"


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
async def test_data_of_every_version_is_read(
    mongodb_uri: str, database: str, admin: MongoClient, version: int
) -> None:
    """Documents that were written at that version mean what they meant."""
    layout = json_util.loads((LAYOUTS / f"{version}.json").read_text())
    for collection, documents in layout.items():
        admin[database][collection].insert_many(documents)

    async with MongoSessionService(mongodb_uri, database=database) as service:
        session = await service.get_session(**IDS)

    assert session is not None
    assert [each.author for each in session.events] == ["user", "agent"]
    shared = {"app:n": 1, "user:city": "Rome"}
    assert session.state == {"a.b": 2**70, "topic": "x", **shared}


async def test_newer_data_is_refused(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """The error names the remedy, and nothing is written."""
    newer = {"_id": "schema", "version": SCHEMA_VERSION + 1}
    admin[database].metadata.insert_one(newer)
    service = MongoSessionService(mongodb_uri, database=database)

    with pytest.raises(SchemaVersionError, match="Upgrade mongo-session-service"):
        await service.setup()
    with pytest.raises(SchemaVersionError, match="Upgrade mongo-session-service"):
        await service.create_session(**IDS)
    await service.close()

    assert admin[database].list_collection_names() == ["metadata"]
