"""Collections and indexes that an administrator has made with a collation."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import ASCENDING, MongoClient
from support.subscriptions import SESSION

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.admin import Status, examine
from mongo_session_service.schema.indexes import EVENT_ONCE, INDEXES
from mongo_session_service.schema.setup import COLLECTIONS

PREFIX = "adk."
FOLDING: dict[str, Any] = {"locale": "en", "strength": 2}
COLLATIONS = [
    FOLDING,
    {"locale": "en"},
    {"locale": "en", "numericOrdering": True},
    {"locale": "fr", "alternate": "shifted"},
]


@pytest.fixture
def service(mongodb_uri: str, database: str) -> MongoSessionService:
    return MongoSessionService(mongodb_uri, database=database, collection_prefix=PREFIX)


async def doctors_findings(service: MongoSessionService) -> dict[str, Any]:
    return {each.check: each async for each in examine(service)}


@pytest.mark.parametrize(
    ("collection", "collation"),
    [(each, COLLATIONS[at % 4]) for at, each in enumerate(COLLECTIONS)],
)
async def test_a_collection_with_a_collation_is_refused_before_anything_is_read(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    collection: str,
    collation: dict[str, Any],
) -> None:
    """Any collation makes users one whose ids differ; the doctor finds it, too."""
    admin[database].create_collection(PREFIX + collection, collation=collation)
    where = f"{database}.{PREFIX}{collection}"

    for call in (service.get_session, service.create_session, service.delete_session):
        with pytest.raises(ConfigurationError, match=f"Collection '{where}'"):
            await call(**SESSION)
    with pytest.raises(ConfigurationError, match="collation"):
        await service.setup()
    found = (await doctors_findings(service))["indexes"]
    await service.close()

    assert (found.status, where in found.says) == (Status.FAILED, True)
    assert admin[database].list_collection_names() == [PREFIX + collection]


@pytest.mark.parametrize("name", [EVENT_ONCE.name, "mine"])
async def test_an_index_by_which_events_are_one_is_refused(
    service: MongoSessionService, database: str, admin: MongoClient, name: str
) -> None:
    """Under the name of ours or another: else events are refused as stored already."""
    keys = [(each, ASCENDING) for each in EVENT_ONCE.keys]
    events = admin[database][PREFIX + "events"]
    events.create_index(keys, unique=True, name=name, collation=FOLDING)

    with pytest.raises(ConfigurationError, match=f"Index '{name}' of"):
        await service.create_session(**SESSION)
    found = (await doctors_findings(service))["indexes"]
    await service.close()

    assert (found.status, name in found.says) == (Status.FAILED, True)


async def test_an_index_for_searches_of_ones_own_is_left_alone(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """One that is not unique changes no answer."""
    title = [("title", ASCENDING)]
    sessions = admin[database][PREFIX + "sessions"]
    sessions.create_index(title, name="search", collation=FOLDING)

    await service.create_session(**SESSION)
    await service.close()


@pytest.mark.parametrize("index", INDEXES, ids=lambda it: it.name)
def test_a_definition_has_no_collation(index: Any) -> None:
    """One of the same keys and options that has a collation is another index."""
    described = {"key": index.directed_keys, **index.options}
    described.pop("name")

    assert index.is_like({index.name: described})
    assert not index.is_like({index.name: {**described, "collation": FOLDING}})
