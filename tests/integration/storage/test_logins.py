"""A server that asks for a user: without one, and after the user was dropped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from google.adk.events import Event
from support.databases import drop
from support.leak_detector import PASSWORD
from support.secured_mongod import ROLE, USER, Secured
from support.subscriptions import PATIENCE, SESSION, Follower

from mongo_session_service import Change, MongoSessionService, StorageError, admin
from mongo_session_service.admin.privileges import FEATURES, needs
from mongo_session_service.embedded.mongod import HOST

pytestmark = pytest.mark.xdist_group("secured")

DATABASE = "logins"
USER_IDS = {"app_name": "app", "user_id": "user"}


def drop_and_create_user(server: Secured) -> None:
    server.admin.admin.command("dropUser", USER)
    server.admin.admin.command("createUser", USER, pwd=PASSWORD, roles=[ROLE])


@pytest.fixture
async def service(server: Secured) -> AsyncIterator[MongoSessionService]:
    """A service as a user who may do all."""
    drop(server.admin, DATABASE)
    server.grant(needs(FEATURES, DATABASE))
    async with MongoSessionService(server.uri(), database=DATABASE) as service:
        yield service


async def test_a_database_user_may_be_created_again(
    service: MongoSessionService, server: Secured
) -> None:
    """Every call works right after its user was dropped and created again."""
    session = await service.create_session(**SESSION)

    async def iterate() -> object:
        return [each async for each in service.iter_events(**SESSION)]

    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: service.append_event(session, Event(author="x")),
        lambda: service.get_session(**SESSION),
        lambda: service.create_session(**USER_IDS),
        lambda: service.create_session(**USER_IDS, state={"app:k": 1}),
        lambda: service.list_sessions(app_name="app"),
        lambda: service.find_sessions(app_name="app"),
        lambda: service.update_session(**SESSION, title="t"),
        lambda: service.get_user_state(**USER_IDS),
        iterate,
        lambda: service.fork_session(**SESSION),
        service.prune,
        lambda: service.delete_user(**USER_IDS),
    ]
    for call in calls:
        drop_and_create_user(server)
        await call()


async def test_streams_of_a_database_user_created_again_continue(
    service: MongoSessionService, server: Secured
) -> None:
    """Subscriptions and consumers miss nothing of what is written afterwards."""
    session = await service.create_session(**SESSION)
    received: asyncio.Queue[Change] = asyncio.Queue()
    async with (
        asyncio.timeout(PATIENCE),
        Follower(service.watch(*SESSION.values())) as follower,
        service.consumer("c", start="now") as consumer,
    ):
        running = asyncio.create_task(consumer.run(received.put))
        for revision in (1, 2, 3):
            await service.append_event(session, Event(author="x"))
            await follower.reached(revision)
            assert (await received.get()).revision == revision
            drop_and_create_user(server)
    await running

    assert follower.revisions == {"app/user/s": [1, 2, 3]}


async def test_a_missing_login_is_reported_as_such(server: Secured) -> None:
    """It is not reported as a missing privilege, nor access as open."""
    said = "requires a user and password, but got none.*authSource"
    host = f"{HOST}:{server.port}"
    for uri in (f"mongodb://{host}/", f"mongodb://{host}/?replicaSet=rs0"):
        service = MongoSessionService(uri)
        with pytest.raises(StorageError, match=said) as caught:
            await service.create_session(**SESSION)
        findings = [each async for each in admin.examine(service)]
        await service.close()

        assert type(caught.value) is StorageError
        assert "access control is off" not in str(findings)
        assert "lacks" not in str(findings)
