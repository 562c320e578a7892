"""A real replica set for the whole run, and a database of its own for each test."""

from __future__ import annotations

import asyncio
import os
import subprocess
import uuid
import warnings
from collections import ChainMap
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from pymongo import MongoClient
from pymongo.uri_parser import parse_uri
from support import interrupts, leak_detector
from support.databases import DatabasePool, drop, forget_soon, new_name
from support.fake_clock import forget_clocks
from support.foreign_stores import Place, PostgreSql, postgresql_server
from support.memory_files import in_memory
from support.otel_recorder import recording
from support.secured_mongod import Secured, secured

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.embedded.mongod import HOST, find_mongod, free_ports
from mongo_session_service.testing import Limits

pytest_plugins = [
    "support.lean_workers",
    "support.order",
    "support.daily_sample",
    "support.fast_core",
    "support.timeout_plugin",
]

# No example is a failure for the time it takes: that is the machine's.
settings.register_profile(
    "untimed",
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Handle SIGINT as usual; search all that is emitted."""
    interrupts.handle()
    leak_detector.watch_everything()


def pytest_warning_recorded(warning_message: warnings.WarningMessage) -> None:
    leak_detector.warned(warning_message)


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """What a test stores is in nothing that is logged, raised or traced."""
    search = leak_detector.begin()
    yield
    recording().forget_spans()
    assert search.leaks() == []


@pytest.fixture(autouse=True)
def _clocks_go_right() -> Iterator[None]:
    """No clock of another test decides."""
    yield
    forget_clocks()


@pytest.fixture(autouse=True, scope="session")
def _nothing_leaks_into_metrics() -> Iterator[None]:
    """No label of a metric holds a secret."""
    yield
    labels = repr(recording().labels())
    assert not [each for each in leak_detector.SECRETS if each in labels]


@pytest.fixture(scope="session")
def mongodb_uri() -> Iterator[str]:
    """$MONGODB_URI, or an embedded replica set; the run fails if neither works."""
    if uri := os.environ.get("MONGODB_URI"):
        parse_uri(uri)
        yield uri
    else:
        with ExitStack() as stack:
            with in_memory():
                replica_set = stack.enter_context(EmbeddedReplicaSet())
            forget_soon(replica_set.uri)
            yield replica_set.uri


@pytest.fixture(scope="session")
def admin(mongodb_uri: str) -> Iterator[MongoClient]:
    """A synchronous client, to look at what is really stored."""
    with MongoClient(mongodb_uri) as client:
        yield client


@pytest.fixture(scope="session")
def pool(admin: MongoClient, mongodb_uri: str) -> Iterator[DatabasePool]:
    """Databases that one test after another uses."""
    pool = DatabasePool(admin)
    asyncio.run(pool.set_up(mongodb_uri))
    yield pool
    pool.drop_all()


@pytest.fixture
def new_database(admin: MongoClient) -> Iterator[str]:
    """The name of a database that is not there, and is dropped after the test."""
    name = new_name()
    yield name
    drop(admin, name)


@pytest.fixture
def database(pool: DatabasePool) -> Iterator[str]:
    """The name of a database without documents, set up by a test before as a rule."""
    with pool.lent() as name:
        yield name


@pytest.fixture
def day(request: pytest.FixtureRequest) -> str:
    """What chooses the samples of a test that takes them itself."""
    return str(request.config.option.sample)


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> Limits:
    """What services of the test work with, as its mark ``limits`` sets it."""
    marks = request.node.iter_markers("limits")  # the closest first
    return Limits(**ChainMap(*(each.kwargs for each in marks)))


@pytest.fixture
async def service(
    mongodb_uri: str, database: str, limits: Limits
) -> AsyncIterator[MongoSessionService]:
    """A service on the test's own database."""
    async with MongoSessionService(
        mongodb_uri, database=database, _limits=limits
    ) as service:
        yield service


@pytest.fixture
def standalone_uri(tmp_path: Path) -> Iterator[str]:
    """A mongod that is no member of a replica set."""
    (port,) = free_ports(1)
    command = [find_mongod(), f"--port={port}", f"--bind_ip={HOST}", "--nounixsocket"]
    with subprocess.Popen(
        [*command, f"--dbpath={tmp_path}"], stdout=subprocess.PIPE, text=True
    ) as mongod:
        try:
            assert mongod.stdout is not None
            next(line for line in mongod.stdout if "Waiting for connections" in line)
            yield f"mongodb://{HOST}:{port}/"
        finally:
            mongod.kill()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSql]:
    """A real PostgreSQL for the whole run."""
    with postgresql_server() as server:
        yield server


@pytest.fixture(scope="session")
def server() -> Iterator[Secured]:
    """A server with access control and TLS; whoever uses it is of one xdist group."""
    with ExitStack() as stack:
        with in_memory():
            server = stack.enter_context(secured())
        yield server


@pytest.fixture
async def place(
    tmp_path: Path, mongodb_uri: str, postgresql: PostgreSql, admin: MongoClient
) -> AsyncIterator[Place]:
    """Where a test may put another service's store; MongoDB's is dropped after it."""
    name = f"test_source_{uuid.uuid4().hex}"
    async with AsyncExitStack() as closing:
        yield Place(tmp_path, mongodb_uri, name, postgresql, closing)
    drop(admin, name)
