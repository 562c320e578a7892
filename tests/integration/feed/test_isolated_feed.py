"""Nobody is told of what is not theirs, however alike the ids are."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from pymongo import MongoClient
from support.attack_surface import Besieged, changed
from support.consumers import take
from support.similar_ids import Crowd, Owner, is_within, marks_in, named
from support.subscriptions import Follower

from mongo_session_service import Change, MongoSessionService

FATES = {"created", "appended", "deleted"}


@pytest.fixture
async def crowd(service: MongoSessionService) -> Crowd:
    crowd = Crowd(service)
    await crowd.populate()
    return crowd


async def test_subscribers_receive_changes_of_their_own_scope(crowd: Crowd) -> None:
    """Each receives those of its session, user or app, in order.

    Everybody writes at once, so that transactions are of many.
    """
    sessions = await crowd.loaded()
    async with AsyncExitStack() as following:
        everything, *followers = await asyncio.gather(
            *(
                following.enter_async_context(Follower(crowd.service.watch(*scope)))
                for scope in [(), *crowd.owners]
            )
        )
        told = dict(zip(crowd.owners, followers, strict=True))

        await asyncio.gather(
            *(
                crowd.service.append_event(
                    session, crowd.event(key, **again(crowd, key))
                )
                for key, session in zip(crowd.keys, sessions, strict=True)
            )
        )
        await asyncio.gather(
            *(crowd.service.delete_session(**named(key)) for key in crowd.keys)
        )

        await everything.until(lambda: len(fates(everything)) == 2 * len(crowd.keys))
        for scope, follower in told.items():
            own = [each for each in fates(everything) if is_within(each[1], scope)]
            await follower.until(lambda f=follower, o=own: len(fates(f)) >= len(o))
            assert fates(follower) == own
    for scope, follower in told.items():
        for change in follower.told:
            assert marks_in(change) <= crowd.marks_of(scope)
            assert is_of(change, scope)


async def test_consumers_of_an_app_receive_its_changes_only(
    crowd: Crowd, admin: MongoClient
) -> None:
    """By replay and live; their names are as alike, and one goes with its app alone."""
    async with AsyncExitStack() as consuming:
        consumers = await asyncio.gather(
            *(
                consuming.enter_async_context(
                    crowd.service.consumer(app_name, app_name=app_name)
                )
                for (app_name,) in crowd.apps
            )
        )
        told = dict(zip(crowd.apps, consumers, strict=True))

        async def checked(app: Owner) -> None:
            keys = crowd.sessions_of(app)
            changes = await take(told[app], len(keys), commit=True)
            assert {each.session_key for each in changes} == set(keys)
            assert marks_in(changes) == crowd.marks_of(app)

        await asyncio.gather(*map(checked, crowd.apps))
        sessions = zip(crowd.keys, await crowd.loaded(), strict=True)
        await asyncio.gather(
            *(
                crowd.service.append_event(session, crowd.event(key))
                for key, session in sessions
            )
        )
        await asyncio.gather(*map(checked, crowd.apps))

    stored = Besieged(crowd.service, admin).stored
    for app in crowd.apps:
        before = stored()
        await crowd.service.delete_app(app_name=app[0])
        kept = {"checkpoints", "leases"}
        changes = {each for each in changed(before, stored()) if each[0] in kept}
        assert ("checkpoints", app) in changes
        assert {owner for _, owner in changes} == {app}


def again(crowd: Crowd, key: Owner) -> dict[str, str]:
    """A delta that is new in every scope."""
    return {f"{name}-2": value for name, value in crowd.state(key).items()}


def fates(follower: Follower) -> list[tuple[str, Owner]]:
    """What it was told to have become of sessions."""
    return [
        (each.kind, each.session_key)
        for each in follower.told
        if each.kind in FATES and each.session_key
    ]


def is_of(change: Change, scope: Owner) -> bool:
    """Whether it is about what belongs to a scope, or about state that this shares."""
    parts = (change.app_name, change.user_id, change.session_id)
    owner = tuple(each for each in parts if each is not None)
    return is_within(owner, scope) or (
        change.kind == "state" and is_within(scope, owner)
    )
