"""Servers that cannot keep the promises, and what the service says of them."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest
from google.adk.events import Event
from mongomock_motor import AsyncMongoMockClient
from pymongo import MongoClient
from support.failpoints import failing

from mongo_session_service import (
    ConfigurationError,
    MongoSessionService,
    NotAuthorizedError,
    StorageError,
    StorageUnavailableError,
)
from mongo_session_service.admin import Status, doctor
from mongo_session_service.schema.indexes import EVENT_ONCE, INDEXES
from mongo_session_service.storage import server
from mongo_session_service.storage.server import check_product, check_server

IDS = {"app_name": "app", "user_id": "user", "session_id": "s"}


async def test_a_standalone_server_is_refused_with_the_remedy(
    standalone_uri: str,
) -> None:
    """Without a replica set nothing is stored; transactions=False is the way around."""
    with pytest.raises(ConfigurationError, match=r"--replSet.*transactions=False"):
        await MongoSessionService(standalone_uri).create_session(**IDS)

    async with MongoSessionService(standalone_uri, transactions=False) as service:
        assert (await service.list_sessions(app_name="app")).sessions == []
        session = await service.create_session(**IDS, state={"app:k": 1})
        await service.append_event(session, Event(author="x"))
        assert await service.get_session(**IDS) == session


@pytest.mark.parametrize("transactions", [True, False])
async def test_a_standalone_server_is_a_finding(
    standalone_uri: str, *, transactions: bool
) -> None:
    """It cannot be used, or has no consumers."""
    service = MongoSessionService(standalone_uri, transactions=transactions)

    findings = {each.check: each async for each in doctor.examine(service)}
    lacks = "is a standalone" if transactions else "no history"
    with pytest.raises(ConfigurationError, match=f"{lacks}.*replica set"):
        await service.consumers()
    await service.close()

    failed = {name for name, each in findings.items() if each.status is Status.FAILED}
    assert failed == {"server" if transactions else "oplog window"}
    if transactions:
        assert list(findings) == ["server"]
        assert "--replSet" in findings["server"].says
    else:
        assert list(findings) == list(doctor.CHECKS)
        assert "no oplog" in findings["oplog window"].says


async def test_mongomock_has_no_consumers() -> None:
    """It has no changes to deliver."""
    client = AsyncMongoMockClient()
    async with MongoSessionService(client=client, transactions=False) as service:
        with pytest.raises(ConfigurationError, match="no history.*replica set"):
            await service.consumers()


@pytest.mark.parametrize(
    ("hello", "transactions", "says"),
    [
        ({"maxWireVersion": 9, "setName": "rs0"}, True, "MongoDB 5.0"),
        ({"maxWireVersion": 9}, False, "MongoDB 5.0"),
        ({"maxWireVersion": 17}, True, "standalone"),
        ({"maxWireVersion": 17, "isreplicaset": True}, True, "initiate"),
        ({"maxWireVersion": 17}, False, None),
        ({"maxWireVersion": 13, "setName": "rs0"}, True, None),
        ({"maxWireVersion": 25, "msg": "isdbgrid"}, True, None),
    ],
)
def test_unsuitable_servers_are_refused(
    hello: dict[str, Any], says: str | None, *, transactions: bool
) -> None:
    """A server too old, or without transactions where they are needed, is refused."""
    if says is None:
        check_server(hello, transactions=transactions)
    else:
        with pytest.raises(ConfigurationError, match=says):
            check_server(hello, transactions=transactions)


@pytest.mark.parametrize(
    ("reply", "raised"),
    [
        (StorageError("Unknown option"), ConfigurationError),
        ({"cursor": {"firstBatch": []}}, ConfigurationError),
        (NotAuthorizedError("not authorized"), NotAuthorizedError),
    ],
)
async def test_another_server_with_mongodbs_protocol_is_refused(
    reply: dict[str, Any] | Exception, raised: type[Exception]
) -> None:
    """A server that shows no sign of MongoDB's has to answer a snapshot read."""
    storage: Any = mock.MagicMock()
    storage.command = mock.AsyncMock(side_effect=[reply])

    with pytest.raises(raised, match="not MongoDB.*snapshot|not authorized"):
        await check_product(storage, {"maxWireVersion": 21})


async def test_mongodb_without_build_information_is_accepted(
    mongodb_uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that leaves out what it does not know."""
    answer = {"maxWireVersion": 17, "setName": "rs0", "localTime": datetime.now(UTC)}
    hello = mock.AsyncMock(return_value=answer)
    monkeypatch.setattr(server, "ask_hello", hello)

    async with MongoSessionService(mongodb_uri, database=database) as service:
        await service.create_session(**IDS)

    assert hello.await_count


async def test_data_that_allows_for_no_index_is_served_with_a_warning(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Events stored twice by some other means stop neither setup() nor appends."""
    for revision in (1, 2):
        id_ = {**IDS, "revision": revision}
        event = Event(id="twice", author="x").model_dump(exclude_none=True)
        admin[database].events.insert_one({"_id": id_, "event": event})

    async with MongoSessionService(mongodb_uri, database=database) as service:
        session = await service.create_session(app_name="app", user_id="user")
        await service.append_event(session, Event(author="x"))

    assert "holds an event twice" in caplog.text


@pytest.mark.parametrize(
    ("collection", "name", "key", "missing", "why"),
    [
        ("sessions", "mine", "expire_time", "expire_time", "same keys"),
        ("sessions", "expire_time", "update_time", "expire_time", "that name"),
        ("events", EVENT_ONCE.name, "event.author", EVENT_ONCE.name, "that name"),
    ],
)
async def test_an_index_of_the_users_own_stops_no_other(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    caplog: pytest.LogCaptureFixture,
    collection: str,
    name: str,
    key: str,
    missing: str,
    why: str,
) -> None:
    """All else is created, and what is not is named."""
    admin[database][collection].create_index(key, name=name, sparse=True)
    service = MongoSessionService(mongodb_uri, database=database)

    await service.setup()
    session = await service.create_session(**IDS)
    await service.append_event(session, Event(id="e", author="x"))
    same = Event(id="e", author="x", timestamp=session.events[0].timestamp)
    await service.append_event(session, same)

    assert len(session.events) == 1
    await service.close()
    (said,) = caplog.messages
    absent = [
        index.name
        for index in INDEXES
        if not index.is_like(admin[database][index.collection].index_information())
    ]
    assert absent == [missing]
    assert f"index {missing!r} of '{collection}' (another index" in said
    assert why in said
    assert "lacks the privilege" not in said
    found = {each["_id"] for each in admin[database].metadata.find()}
    assert found == {"schema"}


async def test_setup_may_be_repeated(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """setup() is idempotent, and leaves exactly the documented indexes."""
    await service.setup()

    indexes = {
        name: set(admin[database][name].index_information())
        for name in admin[database].list_collection_names()
    }
    assert indexes == {
        "sessions": {
            "_id_",
            "expire_time",
            "by_user",
            "by_app",
            "by_title",
            "by_turn",
            "by_label",
            "by_waiting",
            "by_user_family",
        },
        "families": {"_id_", "by_user", "by_app", "by_title", "by_label"},
        "events": {"_id_", "event_id_once_per_session"},
        "app_states": {"_id_"},
        "user_states": {"_id_"},
        "partials": {"_id_", "time"},
        "checkpoints": {"_id_"},
        "leases": {"_id_"},
        "dead_letters": {"_id_"},
        "metadata": {"_id_"},
    }


@pytest.mark.parametrize(
    ("code", "says"), [(13, "privilege"), (18, "user name"), (2, "code 2")]
)
async def test_a_refusal_names_its_reason_and_no_values(
    victim: MongoSessionService, admin: MongoClient, code: int, says: str
) -> None:
    """The server's text, which may quote documents, is neither shown nor chained."""
    with (
        failing(admin, "insert", errorCode=code),
        pytest.raises(StorageError) as caught,
    ):
        await victim.create_session(**IDS, state={"secret": "hunter2"})

    assert says in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    assert not re.search("hunter2|failCommand", str(caught.value))


async def test_wrong_credentials_are_called_so_every_time(mongodb_uri: str) -> None:
    """A refused password is no outage, in the first call and in later ones."""
    uri = mongodb_uri.replace("mongodb://", "mongodb://ada:hunter2@")
    service = MongoSessionService(f"{uri}&serverSelectionTimeoutMS=500")

    for _ in range(3):
        with pytest.raises(StorageError, match="user name or password") as caught:
            await service.create_session(**IDS)

        assert not isinstance(caught.value, StorageUnavailableError)
        assert "hunter2" not in repr(caught.value)
    await service.close()


async def test_a_wrong_name_of_the_replica_set_is_the_reason(mongodb_uri: str) -> None:
    """Soon, with the driver's own time limit, and not that no server runs."""
    wrong = mongodb_uri.replace("replicaSet=rs0", "replicaSet=wrong")
    began = time.monotonic()
    with pytest.raises(StorageUnavailableError) as caught:
        async with MongoSessionService(wrong):
            pass

    assert time.monotonic() - began < 10
    assert str(caught.value).startswith(
        "MongoDB is unavailable: no member of a replica set named 'wrong' was found."
    )
    assert "check replicaSet= in the URI" in str(caught.value)
