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


@pytest.mark.parametrize("reads_only", [False, True])
async def test_families_without_documents_are_read(
    mongodb_uri: str, database: str, admin: MongoClient, *, reads_only: bool
) -> None:
    """A conversation has its versions, the one that is shown, and its title."""
    layout = json_util.loads((LAYOUTS / "versions.json").read_text())
    for collection, documents in layout.items():
        admin[database][collection].insert_many(documents)
    ids = {"app_name": "weather", "user_id": "ada"}
    service = MongoSessionService(mongodb_uri, database=database)
    if not reads_only:
        await service.setup()

    found = await service.find_branches(**ids, session_id="due")
    (listed,) = (await service.find_sessions(**ids, families=True)).sessions
    await service.show_branch(**ids, session_id="due")
    (flipped,) = (await service.find_sessions(**ids, title="Trip")).sessions
    await service.close()

    assert [(it.session_id, it.before_invocation_id, it.is_shown) for it in found] == [
        ("root", None, False),
        ("uno", "i-one", True),
        ("due", "i-deux", False),
    ]
    assert [(it.revision, it.version_of) for it in found[1:]] == [
        (0, "root"),
        (2, "root"),
    ]
    assert (listed.id, listed.title, listed.labels) == ("uno", "Trip", {"a": "b"})
    assert (listed.branches, flipped.id) == (3, "due")


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
