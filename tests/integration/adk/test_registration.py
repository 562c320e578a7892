"""One call that has ADK's own tools use the service, with any of its options."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from google.adk.cli import service_registry
from google.adk.cli.fast_api import get_fast_api_app
from google.adk.sessions import BaseSessionService
from pymongo import AsyncMongoClient, MongoClient
from support.adk_tools import (
    SERVICES,
    forget_services,
    sessions_of,
    turn,
    with_database,
    write_agents,
)
from support.http_server import Client, serving

from mongo_session_service import ConfigurationError, MongoSessionService
from mongo_session_service.adk import register
from mongo_session_service.http import allow_everyone, sessions_router

URI = "mongodb://127.0.0.1:1/theirs"

pytestmark = pytest.mark.usefixtures("registry")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry of ADK's as it is in a new process."""
    forget_services(monkeypatch)


def built(uri: str = URI, **adk_arguments: object) -> BaseSessionService | None:
    """What ADK builds for a URI."""
    adk = service_registry.get_service_registry()
    return adk.create_session_service(uri, agents_dir="agents", **adk_arguments)


def test_registered_options_precede_those_that_adk_passes() -> None:
    """A URI or a database that was registered counts, also if ADK was given another."""
    register(uri="mongodb://127.0.0.1:1/ours")
    by_uri = built("mongodb://")
    register(database="ours")
    by_name = built(database="theirs")

    for service in (by_uri, by_name):
        assert isinstance(service, MongoSessionService)
        assert service.database_name == "ours"


async def test_a_client_takes_the_place_of_the_uri(
    mongodb_uri: str, database: str
) -> None:
    """With a registered client, the URI that ADK was given is not connected to."""
    async with AsyncMongoClient(mongodb_uri) as client:
        register(client=client, database=database)
        service = built(URI)

        assert isinstance(service, MongoSessionService)
        assert await service.ping() > 0


def test_a_misspelt_hook_ends_adks_tools(tmp_path: Path) -> None:
    """A wrong argument in ``services.py`` is never replaced by a service without it."""
    (tmp_path / "services.yaml").write_text(SERVICES)
    (tmp_path / "services.py").write_text(
        "from mongo_session_service.adk import register\nregister(befor_store=str)\n"
    )

    with pytest.raises(ConfigurationError, match="Did you mean 'before_store'"):
        get_fast_api_app(agents_dir=str(tmp_path), session_service_uri=URI, web=False)


def test_a_missing_uri_is_refused() -> None:
    """A URI from an environment that has none does not fall back to ADK's."""
    register(uri=None)

    with pytest.raises(ConfigurationError, match="it got neither"):
        built()


@pytest.mark.parametrize("late", ["register", "session_db_kwargs"])
async def test_a_shared_service_has_its_options_already(
    service: MongoSessionService, late: str
) -> None:
    """Arguments beside a service are refused by name, wherever they were given."""
    given = {"before_store": str}
    register(service, **(given if late == "register" else {}))

    with pytest.raises(ConfigurationError, match="'before_store'"):
        built(**(given if late == "session_db_kwargs" else {}))


async def test_options_act_in_adks_own_app(
    tmp_path: Path, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """``services.py`` has ADK's app store under a prefix, and only what a hook made."""
    write_agents(tmp_path / "agents")
    (tmp_path / "agents" / "services.py").write_text(
        "from mongo_session_service.adk import register\n"
        "register(collection_prefix='chat_', before_store=lambda *_: {'sealed': 1},\n"
        "         after_load=lambda *_: 'opened')\n"
    )
    app = get_fast_api_app(
        agents_dir=str(tmp_path / "agents"),
        session_service_uri=with_database(mongodb_uri, database),
        web=False,
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://a") as api:
        new = await api.post(sessions_of("ada"), json={"state": {"colour": "red"}})

    (stored,) = admin[database].chat_sessions.find()
    assert stored["state"] == {"colour": {"sealed": 1}}
    assert new.json()["state"] == {"colour": "opened"}


async def test_one_service_for_adks_app_and_the_changes(
    service: MongoSessionService, tmp_path: Path
) -> None:
    """A route on the service that ADK uses sends what an agent answers there."""
    write_agents(tmp_path / "agents")
    (tmp_path / "agents" / "services.yaml").unlink()
    register(service)
    app = get_fast_api_app(
        agents_dir=str(tmp_path / "agents"), session_service_uri=URI, web=False
    )
    app.include_router(sessions_router(service, authorize=allow_everyone))

    async with (
        serving(app) as url,
        httpx.AsyncClient(base_url=url, trust_env=False) as api,
    ):
        await api.post(sessions_of("ada"), json={"session_id": "s1"})
        async with Client(f"{url}{sessions_of('ada')}/s1/changes") as client:
            assert (await client.next()).kind == "snapshot"
            ran = await api.post("/run", json=turn("s1", "red"))
            changes = await client.take(4)

    assert [change.data["event"] for change in changes[1:]] == ran.json()
