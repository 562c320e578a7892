"""Whatever is wrong is said clearly, with the remedy, and changes nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions import DatabaseSessionService
from mongomock_motor import AsyncMongoMockClient
from pymongo import AsyncMongoClient, MongoClient

from mongo_session_service import (
    ConfigurationError,
    InvalidInputError,
    MongoSessionService,
    StorageUnavailableError,
)

IDS = {"app_name": "app", "user_id": "user", "session_id": "s"}
NO_HOST = "mongodb://ada:hunter2@127.0.0.1:1/?serverSelectionTimeoutMS=200"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "neither"),
        ({"uri": "mongodb://h", "client": AsyncMongoMockClient()}, "both"),
        ({"client": "mongodb://h"}, "not str"),
        ({"client": object()}, "AsyncMongoClient"),
        ({"client": AsyncMongoMockClient()}, "transactions=False"),
        ({"uri": "postgresql://ada:hunter2@h/db"}, "mongodb://"),
        ({"uri": "mongodb://ada:hunter2@h:port/"}, "percent-encoded"),
        ({"uri": "mongodb://ada:hunt/er2@h/"}, "percent-encoded"),
        ({"uri": "not a uri"}, "mongodb://"),
        ({"uri": ""}, "URI"),
        ({"uri": 1}, "uri must be a string"),
        ({"uri": AsyncMongoMockClient()}, "client="),
        ({"uri": "mongodb://me@h/"}, "password"),
        ({"uri": "mongodb://u%3Ahunter2%40h:99999/"}, "a host is"),
        ({"uri": "mongodb://u:hunter2@h/?srvServiceName=x"}, "malformed"),
        ({"uri": "mongodb://h", "database": "a.b"}, "database name"),
        ({"uri": "mongodb://h", "database": 1}, "database"),
        ({"uri": "mongodb://h", "database": "d" * 64}, "63 bytes"),
        ({"uri": "mongodb://h", "database": "\ud800"}, "surrogate"),
        ({"uri": "mongodb://u:hunter2@h/admin"}, "authSource=admin"),
        ({"uri": "mongodb://h", "database": "local"}, "MongoDB's own"),
        ({"uri": "mongodb://h", "collection_prefix": "$"}, "prefix"),
        ({"uri": "mongodb://h", "collection_prefix": "system."}, "MongoDB's own"),
        ({"uri": "mongodb://h", "collection_prefix": "p" * 240}, "235"),
        ({"uri": "mongodb://h", "collection_prefix": "\ud800"}, "surrogate"),
        ({"uri": "mongodb://h", "transactions": None}, "True or False"),
        ({"uri": "mongodb://h", "on_conflict": "overwrite"}, "on_conflict"),
        ({"uri": "mongodb://h", "default_ttl": 0}, "default_ttl must be more than 0"),
        ({"uri": "mongodb://h", "default_ttl": "60"}, "default_ttl must be seconds"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    arguments: dict[str, Any], says: str
) -> None:
    """The constructor says what is wrong, and never shows a password."""
    with pytest.raises(ConfigurationError, match=says) as caught:
        MongoSessionService(**arguments)

    assert "hunt" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_synchronous_client_is_refused() -> None:
    """A client that would block the event loop is refused, with the alternatives."""
    with (
        MongoClient("mongodb://h", connect=False) as client,
        pytest.raises(ConfigurationError, match="synchronous.*AsyncMongoClient"),
    ):
        MongoSessionService(client=client)


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("befor_store", "before_store"),
        ("beforeStore", "before_store"),
        ("after_loading", "after_load"),
        ("onconflict", "on_conflict"),
        ("prefix", "collection_prefix"),
        ("db", "database"),
        ("url", "uri"),
        ("agent_dir", "agents_dir"),
        ("x" * 1000, ""),
    ],
)
def test_a_misspelt_argument_is_refused(misspelt: str, meant: str) -> None:
    """A hook that would not be called must not leave secrets in clear."""
    with pytest.raises(ConfigurationError, match=f"no argument '{misspelt[:9]}") as it:
        MongoSessionService(
            "mongodb://h/db", agents_dir="agents", **{misspelt: "hunter2"}
        )

    assert repr(meant)[:-1] in str(it.value)
    assert "hunter2" not in str(it.value)
    assert len(str(it.value)) < 300


async def test_an_unreachable_server_is_named() -> None:
    """The error says which host did not answer, and no password."""
    async with AsyncMongoClient(NO_HOST) as client:
        for service in (
            MongoSessionService(NO_HOST),
            MongoSessionService(client=client),
        ):
            with pytest.raises(StorageUnavailableError) as caught:
                await service.create_session(**IDS)

            assert "127.0.0.1:1" in str(caught.value)
            assert "hunter2" not in repr(caught.value) + repr(caught.value.__cause__)
            await service.close()


NO_STRINGS = [None, 1, b"s", {"$ne": None}, ["s"]]
BAD_IDS = [*NO_STRINGS, "", "\ud800", "x" * 4097]


@pytest.mark.parametrize("name", ["app_name", "user_id"])
@pytest.mark.parametrize("bad", BAD_IDS, ids=lambda bad: ascii(bad)[:9])
async def test_app_and_user_must_be_named(
    service: MongoSessionService, name: str, bad: Any
) -> None:
    """Empty names, other types and query operators never reach the server."""
    session = await service.create_session(**IDS)
    ids = IDS | {name: bad}
    scope = {key: value for key, value in ids.items() if key != "session_id"}
    looking = (service.get_session, service.delete_session) if bad in NO_STRINGS else ()

    for call in (service.create_session, service.update_session, *looking):
        with pytest.raises(InvalidInputError, match=name):
            await call(**ids)
    with pytest.raises(InvalidInputError, match=name):
        await service.delete_user(**scope)
    if bad in NO_STRINGS:
        with pytest.raises(InvalidInputError, match=name):
            await service.get_user_state(**scope)
        if (name, bad) != ("user_id", None):  # None lists the sessions of all users
            with pytest.raises(InvalidInputError, match=name):
                await service.list_sessions(**scope)
    with pytest.raises(InvalidInputError, match=name):
        await service.append_event(
            session.model_copy(update={name: bad}), Event(author="x")
        )

    assert (await service.list_sessions(app_name="app")).sessions == [session]


async def test_an_argument_that_is_no_event_is_refused_by_name(
    service: MongoSessionService,
) -> None:
    """In a sentence that can be read out."""
    session = await service.create_session(**IDS)
    event = Event(author="x")
    wrong = event.model_copy(update={"actions": Event(author="y")})

    for bad, says in (
        ("event", "event must be an Event, not str."),
        (wrong, "event.actions must be an EventActions, not Event."),
    ):
        with pytest.raises(InvalidInputError, match=re.escape(says)):
            await service.append_event(session, bad)
    with pytest.raises(InvalidInputError, match="State keys must be strings, not int"):
        await service.create_session(**IDS | {"session_id": "t"}, state={1: 2})


@pytest.mark.parametrize("bad", [*BAD_IDS, " \n"], ids=lambda bad: ascii(bad)[:9])
async def test_a_session_must_be_named_to_be_found(
    service: MongoSessionService, bad: Any
) -> None:
    """A blank id, another type or an operator finds, changes and deletes nothing."""
    session = await service.create_session(**IDS)
    ids = IDS | {"session_id": bad}
    looking = (service.get_session, service.delete_session) if bad in NO_STRINGS else ()

    for call in (service.update_session, *looking):
        with pytest.raises(InvalidInputError, match="session_id"):
            await call(**ids)
    with pytest.raises(InvalidInputError, match="session_id"):
        await service.append_event(
            session.model_copy(update={"id": bad}), Event(author="x")
        )

    assert await service.get_session(**IDS) == session


class Model:
    def __repr__(self) -> str:
        return "a model"


@pytest.mark.parametrize(
    "value", [print, Model(), {1, 2}, (1, 2), b"text", {1: Model()}, 1 + 2j], ids=repr
)
async def test_values_that_are_not_json_are_stored_as_adks_sql_service_does(
    service: MongoSessionService, value: Any
) -> None:
    """Functions, objects, sets and the like become what ADK's SQL makes them."""
    results = []
    sql = DatabaseSessionService("sqlite+aiosqlite:///:memory:")
    async with sql:
        for each in (sql, service):
            session = await each.create_session(**IDS, state={"a": value})
            event = Event(author="x", actions=EventActions(state_delta={"b": value}))
            await each.append_event(session, event)
            found = await each.get_session(**IDS)
            assert found is not None
            results.append(found.state)

    assert results[0] == results[1]
    assert list(map(type, results[0].values())) == list(map(type, results[1].values()))


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (MongoSessionService.create_session, {"session_id": 1}),
        (MongoSessionService.create_session, {"session_id": ["s"]}),
        (MongoSessionService.create_session, {"session_id": "\ud800"}),
        (MongoSessionService.create_session, {"labels": 0}),
        (MongoSessionService.create_session, {"labels": []}),
        (MongoSessionService.create_session, {"title": False}),
        (MongoSessionService.create_session, {"ttl": False}),
        (MongoSessionService.create_session, {"expire_time": 0}),
        (MongoSessionService.update_session, {"labels": 0}),
        (MongoSessionService.update_session, {"labels": ()}),
        (MongoSessionService.find_sessions, {"labels": 0}),
        (MongoSessionService.find_sessions, {"where": []}),
        (MongoSessionService.find_sessions, {"newest_first": "no"}),
        (MongoSessionService.find_sessions, {"newest_first": None}),
        (MongoSessionService.find_sessions, {"with_state": "no"}),
        (MongoSessionService.find_sessions, {"with_state": 0}),
        (MongoSessionService.find_sessions, {"limit": True}),
        (MongoSessionService.find_sessions, {"page_token": ""}),
        (MongoSessionService.fork_session, {"new_session_id": 0}),
        (MongoSessionService.fork_session, {"new_session_id": []}),
        (MongoSessionService.fork_session, {"at_revision": True}),
        (MongoSessionService.get_session, {"config": {}}),
        (MongoSessionService.wait_for, {"revision": 0, "timeout": True}),
        (MongoSessionService.wait_for, {"revision": 0, "session_id": None}),
    ],
    ids=lambda it: it.__name__ if callable(it) else ascii(it),
)
async def test_false_values_are_not_taken_for_none(
    service: MongoSessionService, call: Any, wrong: dict[str, Any]
) -> None:
    """A wrong type is refused, even if ``if not value`` took it for none at all."""
    ids = IDS.copy()
    if call is MongoSessionService.find_sessions:
        del ids["session_id"]
    else:
        await service.create_session(**IDS)
    if call is MongoSessionService.create_session:
        ids["session_id"] = "other"

    with pytest.raises(InvalidInputError, match=[*wrong][-1].removeprefix("new_")[:5]):
        await call(service, **(ids | wrong))

    assert await service.get_session(**IDS | {"session_id": "other"}) is None
