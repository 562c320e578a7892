from __future__ import annotations

import math
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from google.adk.sessions import InMemorySessionService
from pymongo import MongoClient
from support.encryption_hooks import SEALED
from support.failpoints import victim_uri
from support.resource_checks import leaving_nothing
from support.sample_data import fill

from mongo_session_service import MongoSessionService
from mongo_session_service.testing import Limits


@pytest.fixture
async def victim(
    mongodb_uri: str, database: str, admin: MongoClient, limits: Limits
) -> AsyncIterator[MongoSessionService]:
    """A service whose commands ``faults.failing`` can make fail; it does not sweep.

    Nothing is left of it at the end: on the server, in the driver, in the event loop.
    """
    uri, limits = victim_uri(mongodb_uri), replace(limits, sweep_interval=math.inf)
    async with (
        MongoSessionService(uri, database=database, _limits=limits) as service,
        leaving_nothing(admin, service),
    ):
        yield service


@pytest.fixture
async def second(
    mongodb_uri: str, database: str, limits: Limits
) -> AsyncIterator[MongoSessionService]:
    """A service whose writers come second, if need be."""
    uri = victim_uri(mongodb_uri)
    service = MongoSessionService(
        uri, database=database, on_conflict="rebase", _limits=limits
    )
    async with service:
        yield service


@pytest.fixture
async def old() -> InMemorySessionService:
    """An old service, which is filled and may be written to."""
    service = InMemorySessionService()
    await fill(service)
    return service


@pytest.fixture
async def sealed(mongodb_uri: str, database: str) -> AsyncIterator[MongoSessionService]:
    """A service that stores nothing in clear."""
    async with MongoSessionService(mongodb_uri, database=database, **SEALED) as service:
        yield service
