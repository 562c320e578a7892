"""Services of other prefixes and databases have nothing to do with each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from support.attack_surface import Besieged, changed
from support.limits import NO_SWEEP
from support.similar_ids import KEYS, Crowd, Owner, marks_in, named
from support.subscriptions import Follower

from mongo_session_service import MongoSessionService

PREFIXES = ("", "a", "ab", "a.", "A", "sessions", "sessions.", "(.*)")
"""Beside each other; and the first in another database as well."""

FEW = KEYS[:4]


@pytest.fixture
async def places(
    mongodb_uri: str, database: str, admin: MongoClient
) -> AsyncIterator[list[Crowd]]:
    """The same ids everywhere, marked apart."""
    beside = f"{database}_"
    targets = [*((database, prefix) for prefix in PREFIXES), (beside, "")]
    async with AsyncMongoClient(mongodb_uri) as client:
        places = [
            Crowd(
                MongoSessionService(
                    client=client,
                    database=name,
                    collection_prefix=prefix,
                    _limits=NO_SWEEP,
                ),
                FEW,
                number,
            )
            for number, (name, prefix) in enumerate(targets)
        ]
        await asyncio.gather(*(each.populate() for each in places))
        yield places
        await asyncio.gather(*(each.service.close() for each in places))
    admin.drop_database(beside)


async def test_reads_stay_in_their_place(places: list[Crowd]) -> None:
    """A list has what is in its own collections."""
    for place in places:
        listed = await place.service.list_sessions(app_name="a")
        assert marks_in(listed) == place.marks_of(("a",))
        found = await place.service.find_sessions(app_name="a")
        assert marks_in(found) == place.marks_of(("a",))
        log = place.service.iter_user_events(app_name="a", user_id="a")
        assert marks_in([each async for each in log]) == place.marks_of(("a", "a"))


@pytest.mark.long
async def test_writes_stay_in_their_place(
    places: list[Crowd], admin: MongoClient
) -> None:
    """Each changes its own collections, and watchers of others receive nothing."""
    bare = {*admin[places[-1].service.database_name].list_collection_names()}
    prefixes = [*PREFIXES, ""]
    async with AsyncExitStack() as following:
        followers = [
            await following.enter_async_context(Follower(each.service.watch()))
            for each in places
        ]
        for place in places:
            await place.service.create_session(app_name="a", user_id="a", ttl=1e-6)
        for place, prefix in zip(places, prefixes, strict=True):
            own = {f"{prefix}{name}" for name in bare}
            for step in (touch, prune, erase):
                before = stored(places, admin)
                await step(place)
                after = stored(places, admin)

                touched = {
                    (name, collection)
                    for name in before
                    for collection, _ in changed(before[name], after[name])
                }
                assert touched
                assert {name for name, _ in touched} == {place.service.database_name}
                assert {collection for _, collection in touched} <= own
        for follower in followers:
            await follower.until(lambda f=follower: len(deleted(f)) >= len(FEW))
    for place, follower in zip(places, followers, strict=True):
        assert sorted(deleted(follower)) == sorted(FEW)
        assert marks_in(follower.told) == place.marks_of(())


async def touch(place: Crowd) -> None:
    for key, session in zip(place.keys, await place.loaded(), strict=True):
        await place.service.append_event(session, place.event(key))
        await place.service.update_session(**named(key), title="another")


async def prune(place: Crowd) -> None:
    """Remove what has expired, as something has everywhere."""
    pruned = await place.service.prune()
    assert pruned.sessions == 1


async def erase(place: Crowd) -> None:
    for (app_name,) in place.apps:
        await place.service.delete_app(app_name=app_name)


def deleted(follower: Follower) -> list[Owner]:
    """Which of the sessions it was told to be gone."""
    keys = [each.session_key for each in follower.told if each.kind == "deleted"]
    return [key for key in keys if key in FEW]


def stored(places: list[Crowd], admin: MongoClient) -> dict[str, Any]:
    """All that is stored, by database."""
    return {
        each.service.database_name: Besieged(each.service, admin).stored()
        for each in (places[0], places[-1])
    }
