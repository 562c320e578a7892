"""A new key for all that is stored, while the service is in use."""

from __future__ import annotations

import asyncio
from dataclasses import astuple
from functools import partial
from typing import Any

import pytest
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import AsyncMongoClient, MongoClient
from support.consumers import begun
from support.encryption_hooks import (
    CANARY,
    KEY,
    SEALED,
    STATE,
    Key,
    canary_event,
    clear_text,
    cluster_time,
    sealed_with,
)
from support.subscriptions import Follower, new_event

from mongo_session_service import (
    ConfigurationError,
    InvalidInputError,
    MongoSessionService,
    StorageError,
)
from mongo_session_service.admin import Resealed, reseal
from mongo_session_service.model.limits import Limits

APP, USER = KEY["app_name"], KEY["user_id"]
LARGE = {**KEY, "session_id": "large"}
LARGE_STATE = {"own": [CANARY] * 200}


class Keys:
    """An old key and a new one, and services of before, during and after the change."""

    def __init__(self, uri: str, database: str) -> None:
        self.old, self.new = Key(), Key()
        self.service = partial(MongoSessionService, uri, database=database)
        both = sealed_with(self.new, self.old, reads_clear=True)
        self.before = partial(self.service, **sealed_with(self.old, self.new))
        self.between = partial(self.service, **both)
        self.after = partial(self.service, **sealed_with(self.new))


@pytest.fixture
def keys(mongodb_uri: str, database: str) -> Keys:
    return Keys(mongodb_uri, database)


async def fill(service: MongoSessionService) -> None:
    """Store something in every place that content can be in."""
    session = await service.create_session(**KEY, state=STATE)
    await service.append_event(session, canary_event(**{"user:x": CANARY}))
    await service.append_event(session, canary_event(**{"app:none": None}))
    await service.create_session(**LARGE, state=LARGE_STATE)


async def shown(service: MongoSessionService) -> list[Any]:
    """All that the service shows of it."""
    found: list[Any] = []
    for key in (KEY, LARGE):
        found.append(await service.get_session(**key))
        found.append(await service.get_session_at(**key, revision=0))
    waiting = await service.find_sessions(app_name=APP, waiting=True)
    assert waiting.sessions
    return [*found, *waiting.sessions]


def stored(admin: MongoClient, database: str) -> dict[str, list[Any]]:
    """All content that is in the database."""
    names = {*admin[database].list_collection_names()} - {"checkpoints", "leases"}
    return {name: list(admin[database][name].find()) for name in sorted(names)}


async def test_all_is_sealed_with_the_new_key(
    keys: Keys, database: str, admin: MongoClient
) -> None:
    """Then it is the same with the new key alone, and nobody received a change."""
    async with keys.before() as before:
        await fill(before)
        expected = await shown(before)
    sealed = stored(admin, database)
    progress: list[Resealed] = []

    async with (
        keys.between() as between,
        Follower(between.watch()) as follower,
        between.consumer("idle", start="now") as idle,
    ):
        received = asyncio.create_task(anext(idle))
        await begun(between)
        tried = await reseal(between, keys.new.is_current, dry_run=True)
        assert stored(admin, database) == sealed
        done = await reseal(between, keys.new.is_current, progress.append)
        again = await reseal(between, keys.new.is_current)
        last = await between.create_session(app_name="other", user_id="x")
        await follower.until(lambda: follower.told)
        assert (await received).session_id == last.id
        assert [each.session_id for each in follower.told] == [last.id]

    async with keys.after() as after:
        assert await shown(after) == expected
    assert tried == done == progress[-1]
    assert done == Resealed(2, 1, 2, 1, 1)
    assert again == Resealed()
    assert keys.old.name not in str(stored(admin, database))


@pytest.mark.parametrize("driver", [AsyncMongoClient, AsyncIOMotorClient])
async def test_what_was_in_clear_is_sealed(
    keys: Keys,
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    driver: Any,
) -> None:
    """So an application may begin with hooks when there are sessions already."""
    await fill(service)
    expected = await shown(service)

    client = driver(mongodb_uri)
    hooks = sealed_with(keys.new, reads_clear=True)
    between = MongoSessionService(client=client, database=database, **hooks)
    await reseal(between, keys.new.is_current)
    closing = client.close()
    if closing is not None:
        await closing

    assert [*clear_text(admin, [database], cluster_time(admin))] == []
    async with keys.after() as after:
        assert await shown(after) == expected


async def test_an_append_meanwhile_stays(
    keys: Keys, database: str, admin: MongoClient
) -> None:
    """What changes after it was read is read again, and not overwritten."""
    async with keys.before() as before:
        await before.create_session(**KEY, state={"own": 1})
    (newer,) = (keys.old.seal(2, subject) for subject in [(APP, USER, "own")])
    appends = [{"$set": {"state.own": newer}, "$inc": {"revision": 1}}]

    def is_current(value: Any, subject: Any) -> bool:
        while appends:
            admin[database].sessions.update_one({"_id": KEY}, appends.pop())
        return keys.new.is_current(value, subject)

    async with keys.between() as between:
        done = await reseal(between, is_current)

    document = admin[database].sessions.find_one({"_id": KEY})
    assert document is not None
    subject: Any = (APP, USER, "own")
    assert keys.new.unseal(document["state"]["own"], subject) == 2
    assert document["revision"] == 1
    assert done == Resealed(sessions=1)


async def test_agents_run_meanwhile(keys: Keys) -> None:
    """Nothing of theirs is lost; a later call finds what had the old key."""
    async with keys.before() as before, keys.between() as between:
        sessions = [
            await before.create_session(app_name=APP, user_id=f"{number}")
            for number in range(3)
        ]

        async def run(session: Any) -> None:
            for number in range(10):
                shared = {f"app_{session.user_id}": number, "user_n": number}
                await before.append_event(session, new_event(n=number, **shared))

        agents = asyncio.gather(*map(run, sessions))
        while not agents.done():
            await reseal(between, keys.new.is_current)
        await agents
        await reseal(between, keys.new.is_current)

    async with keys.after() as after:
        for session in sessions:
            ids = {"app_name": APP, "user_id": session.user_id}
            found = await after.get_session(**ids, session_id=session.id)
            assert found is not None
            assert found.events == session.events
            assert found.state == {
                "n": 9,
                "user:n": 9,
                **{f"app:{number}": 9 for number in range(3)},
            }


async def test_an_interrupted_call_is_resumed(keys: Keys) -> None:
    """The next call does the rest, and only that."""
    async with keys.before() as before:
        await fill(before)
        expected = await shown(before)
    counts: list[Resealed] = []

    async with keys.between(_limits=Limits(reseal_bytes=1)) as between:

        def interrupt(resealed: Resealed) -> None:
            counts.append(resealed)
            if resealed.events == 1:
                calling.cancel()

        calling = asyncio.create_task(reseal(between, keys.new.is_current, interrupt))
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert await shown(between) == expected
        rest = await reseal(between, keys.new.is_current)

    assert counts[-1] in {Resealed(2, 0, 1), Resealed(2, 1, 1)}
    totals = zip(astuple(counts[-1]), astuple(rest), strict=True)
    assert Resealed(*map(sum, totals)) == Resealed(2, 1, 2, 1, 1)
    async with keys.after() as after:
        assert await shown(after) == expected


async def test_only_one_app_is_resealed(keys: Keys) -> None:
    """If it is asked for by name, although another begins with that name."""
    async with keys.before() as before:
        await before.create_session(**KEY, state=STATE)
        other = {**KEY, "app_name": f"{APP}2"}
        await before.create_session(**other, state=STATE)

    async with keys.between() as between:
        done = await reseal(between, keys.new.is_current, app_name=APP)
        rest = await reseal(between, keys.new.is_current)

    assert done == rest == Resealed(sessions=1, user_states=1, app_states=1)


async def test_what_cannot_be_resealed_is_named(
    keys: Keys, database: str, admin: MongoClient
) -> None:
    """Nothing is written that could not be read; the message quotes no value."""
    async with keys.before() as before:
        await before.create_session(**KEY, state=STATE)
    sealed = stored(admin, database)

    name = "'app', 'user', 's' in the collection 'sessions' cannot be re-sealed: "
    async with keys.after() as after:
        failure = f"{name}after_load failed with AssertionError for state key 'own'"
        with pytest.raises(StorageError, match=failure):
            await reseal(after, keys.new.is_current)
    async with keys.before() as before:
        with pytest.raises(StorageError, match=f"{name}is_current does not accept"):
            await reseal(before, keys.new.is_current)

    assert stored(admin, database) == sealed


async def test_documents_of_other_tools_are_passed_over(
    keys: Keys, database: str, admin: MongoClient
) -> None:
    """Unless one is in the place of an event, which could not be read either."""
    async with keys.between() as between:
        session = await between.create_session(**KEY)
        await between.append_event(session, canary_event())
        strange = (5, "x", {}, {"app_name": APP}, {**KEY, "revision": "x"})
        for name in ("sessions", "events", "app_states", "user_states"):
            for number, id_ in enumerate(strange):
                event = {"_id": id_, "event": {"id": number}}
                admin[database][name].insert_one(event)
        admin[database].events.insert_one({"_id": {**KEY, "revision": 8}, "event": 5})
        admin[database].user_states.insert_one({"_id": {"user_id": USER, "x": 1}})
        assert await reseal(between, keys.new.is_current) == Resealed()

        odd: dict[str, Any] = {"_id": {**KEY, "revision": 9}, "event": {"id": "y"}}
        admin[database].events.insert_one(odd)
        with pytest.raises(StorageError, match="'9' in .* The event is not as this"):
            await reseal(between, keys.new.is_current)


async def test_it_needs_hooks_and_transactions(
    keys: Keys, service: MongoSessionService
) -> None:
    """Without them, and with wrong arguments, nothing is begun."""
    with pytest.raises(ConfigurationError, match="before_store and after_load"):
        await reseal(service, keys.new.is_current)
    async with keys.service(**SEALED, transactions=False) as alone:
        with pytest.raises(ConfigurationError, match="needs transactions"):
            await reseal(alone, keys.new.is_current)
    async with keys.between() as between:
        wrong: Any = "yes"
        with pytest.raises(InvalidInputError, match="is_current"):
            await reseal(between, wrong)
        with pytest.raises(InvalidInputError, match="dry_run"):
            await reseal(between, keys.new.is_current, dry_run=wrong)
