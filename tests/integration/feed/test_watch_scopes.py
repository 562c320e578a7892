"""Subscriptions to a user, an app or the whole database."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.sessions import Session
from mongomock_motor import AsyncMongoMockClient
from pymongo import MongoClient
from support.subscriptions import (
    APP,
    ID,
    SESSION,
    USER,
    Follower,
    new_event,
    stored_state,
)

from mongo_session_service import ConfigurationError, MongoSessionService

PLACES = [("app", "user", "1"), ("app", "user", "2"), ("app", "u2", "3")] + [
    ("a2", "user", "4")
]


async def happen(service: MongoSessionService) -> None:
    """Everything that can happen, in four sessions of two apps."""
    for app, user, name in PLACES:
        session = await service.create_session(
            app_name=app,
            user_id=user,
            session_id=name,
            state={"s": name, "app:a": name, "user:u": name, "temp:t": 1},
        )
        delta = {"x": name, "app_b": name, "user_v": name}
        await service.append_event(session, new_event(**delta))
        await service.delete_session(app_name=app, user_id=user, session_id=name)


def expected(*indexes: int, apps: set[str], users: set[tuple[str, str]]) -> list[Any]:
    """What a scope is told of it: these sessions, and what users or apps share."""
    told: list[Any] = []
    for index, (app, user, name) in enumerate(PLACES):
        if index in indexes:
            told.append(("created", app, user, name, 0, {"s": name}))
        if (app, user) in users:
            told.append(("state", app, user, None, None, {"user:u": name}))
        if app in apps:
            told.append(("state", app, None, None, None, {"app:a": name}))
        delta = {"x": name, "app:b": name, "user:v": name}
        if index in indexes:
            told.append(("appended", app, user, name, 1, delta))
        else:
            if (app, user) in users:
                told.append(("state", app, user, None, None, {"user:v": name}))
            if app in apps:
                told.append(("state", app, None, None, None, {"app:b": name}))
        if index in indexes:
            told.append(("deleted", app, user, name, None, {}))
    return told


async def test_each_scope_receives_its_own_changes(
    service: MongoSessionService,
) -> None:
    """They come in order; of other scopes only shared state is delivered."""
    await service.create_session(app_name="app", user_id="user", state={"app:a": "0"})
    scopes: dict[tuple[str, ...], list[Any]] = {
        (): expected(
            0, 1, 2, 3, apps={"app", "a2"}, users={place[:2] for place in PLACES}
        ),
        ("app",): expected(
            0, 1, 2, apps={"app"}, users={("app", "user"), ("app", "u2")}
        ),
        ("a2",): expected(3, apps={"a2"}, users={("a2", "user")}),
        ("app", "user"): expected(0, 1, apps={"app"}, users={("app", "user")}),
        ("app", "u2"): expected(2, apps={"app"}, users={("app", "u2")}),
        ("a2", "none"): expected(apps={"a2"}, users=set()),
        ("none",): [],
    }
    followers = [Follower(service.watch(*scope)) for scope in scopes]
    for follower in followers:
        await follower.__aenter__()

    await happen(service)

    for follower, wanted in zip(followers, scopes.values(), strict=True):
        count = len(wanted)
        await follower.until(lambda n=count, each=follower: len(each.told) >= n)
    # What comes after all of it shows that nobody was told too much.
    last = await service.create_session(app_name="none", user_id="x")
    for follower in (followers[0], followers[-1]):
        await follower.until(
            lambda each=follower: each.told and each.told[-1].session_id == last.id
        )
        follower.told.pop()
    for follower, wanted in zip(followers, scopes.values(), strict=True):
        told = [
            (*change.session_key, change.revision, change.state_delta)
            if change.session_key
            else (change.app_name, change.user_id, None, None, change.state_delta)
            for change in follower.told
        ]
        assert [
            (each.kind, *rest) for each, rest in zip(follower.told, told, strict=True)
        ] == wanted
        assert all(change.state is None for change in follower.told)
        await follower.__aexit__(None, None, None)


async def test_subscriptions_start_with_new_changes(
    service: MongoSessionService,
) -> None:
    """Changes committed before the subscription was open are not delivered."""
    session = await service.create_session(**SESSION)
    async with service.watch():  # the stream is open, and has not read this yet
        for number in range(30):
            await service.append_event(session, new_event(app_n=number))
            async with Follower(service.watch(APP)) as follower:
                await service.append_event(session, new_event(n=number))
                await follower.until(lambda: follower.told)
            assert follower.revisions == {"app/user/s": [2 * number + 2]}


async def test_a_user_folds_state_of_transactions_shared_with_others(
    service: MongoSessionService,
) -> None:
    """A value that another event of the transaction overwrote is delivered."""
    sessions: list[Session] = [
        await service.create_session(app_name=APP, user_id=user, session_id=ID)
        for user in (USER, "u2", "u3")
    ]
    await service.append_event(sessions[2], new_event(app_k=9))
    async with Follower(service.watch(APP, USER)) as follower:
        await asyncio.gather(
            *(
                service.append_event(session, new_event(app_k=number))
                for session, number in zip(
                    [*sessions[1:], *sessions], [0, 0, 1, 2, 9], strict=True
                )
            )
        )
        await service.append_event(sessions[0], new_event(done=1))
        await follower.until(lambda: follower.state.get("done"))

    stored = await stored_state(service)
    assert follower.state == {key: stored[key] for key in follower.state}


async def test_writes_of_other_tools_are_delivered(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Values changed in place or removed are; strange documents are passed over."""
    session = await service.create_session(**SESSION, state={"app:a": {"b": [1, 2]}})
    stored = admin[database]
    async with Follower(service.watch()) as follower:
        app = {"_id": APP}
        stored.app_states.update_one(app, {"$set": {"state.a.b.1": 3}})
        # Its document is read when this is told, and is about to be replaced.
        await follower.until(lambda: follower.told)
        stored.app_states.update_one(app, {"$push": {"state.a.b": 4}})
        await follower.until(lambda: len(follower.told) == 2)
        stored.app_states.update_one(app, {"$set": {"state.c%2Ed": 1}})
        stored.app_states.update_one(app, {"$unset": {"state.c%2Ed": 1}})
        stored.app_states.replace_one(app, {"state": {"e": 1}, "revision": 9})
        stored.app_states.delete_one(app)
        for name in ("events", "sessions", "app_states", "user_states"):
            for id_ in (5, None, {}, {"app_name": APP}, {**SESSION, "revision": "x"}):
                stored[name].insert_one({"_id": id_, "x": 1})
                stored[name].delete_one({"_id": id_})
        stored.events.insert_one({"_id": {**SESSION, "revision": 7}, "event": 5})
        stored.sessions.insert_one({"_id": {**SESSION, "session_id": "bad"}})
        stored.user_states.insert_one({"_id": {"app_name": APP, "user_id": USER}})
        stored.unknown.insert_one({"_id": APP})
        await service.append_event(session, new_event(done=1))
        await follower.until(lambda: "appended" in follower.kinds)

    told = [change.state_delta for change in follower.told if change.kind == "state"]
    assert told == [
        {"app:a": {"b": [1, 3]}},
        {"app:a": {"b": [1, 3, 4]}},
        {"app:c.d": 1},
        {"app:c.d": None},
        {"app:e": 1},
    ]


async def test_clients_without_change_streams_are_refused(
    mongodb_uri: str, database: str
) -> None:
    """Both mongomock and transactions=False cannot push, and say so on opening."""
    for service in (
        MongoSessionService(mongodb_uri, database=database, transactions=False),
        MongoSessionService(client=AsyncMongoMockClient(), transactions=False),
    ):
        await service.create_session(**SESSION)
        for scope in ((), (APP, USER, ID)):
            with pytest.raises(ConfigurationError, match="replica set"):
                async with service.watch(*scope):
                    pass
        with pytest.raises(ConfigurationError):
            await service.wait_for(**SESSION, revision=0)
        await service.close()
