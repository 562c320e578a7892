from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from google.adk.sessions import BaseSessionService
from support.backends import BACKENDS, OURS, Backend

from mongo_session_service import MongoSessionService
from mongo_session_service.testing import Limits


def each_of(backends: Sequence[Backend]) -> list[Any]:
    """Parameters of a fixture: one is of the fast core, and of some one a day runs."""
    marks = {"uri": pytest.mark.core, "motor": pytest.mark.release, "adk-in-memory": ()}
    return [
        pytest.param(
            each,
            id=each.name,
            marks=marks.get(each.name, pytest.mark.daily(1, case=each.name)),
        )
        for each in backends
    ]


def expect_differences(request: pytest.FixtureRequest, backend: Backend) -> None:
    """Expect a test to fail for what is written down."""
    if reason := backend.differences.get(request.node.originalname):
        request.node.add_marker(pytest.mark.xfail(strict=True, reason=reason))


@pytest.fixture(params=each_of(BACKENDS))
async def sessions(
    request: pytest.FixtureRequest, mongodb_uri: str, database: str
) -> AsyncIterator[BaseSessionService]:
    """Each backend in turn, its known differences expected to fail."""
    backend: Backend = request.param
    expect_differences(request, backend)
    async with backend.make(mongodb_uri, database) as service:
        yield service


@pytest.fixture(params=each_of(OURS))
async def brief(
    request: pytest.FixtureRequest, mongodb_uri: str, database: str
) -> AsyncIterator[MongoSessionService]:
    """Each way to run our service, with a default time to live of 100 seconds."""
    async with request.param.make(mongodb_uri, database, default_ttl=100) as service:
        yield service


@pytest.fixture(params=each_of(OURS))
async def ours(
    request: pytest.FixtureRequest, mongodb_uri: str, database: str, limits: Limits
) -> AsyncIterator[MongoSessionService]:
    """Each way to run our service, for what ADK's own services do not have."""
    backend: Backend = request.param
    expect_differences(request, backend)
    limits = replace(limits, sweep_interval=math.inf)
    async with backend.make(mongodb_uri, database, _limits=limits) as service:
        assert isinstance(service, MongoSessionService)
        yield service
