"""Changes as large as they get, on a server that has nothing else in its memory."""

from __future__ import annotations

from pymongo import MongoClient
from support.followers import all_received, followed
from support.subscriptions import USER, new_event

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet

LIMIT = 15_400_000


async def test_images_and_documents_at_the_limit() -> None:
    """Pre- and post-images switched on by the user do not make a change too large."""
    with EmbeddedReplicaSet() as server, MongoClient(server.uri) as admin:
        # Of half a GB it refuses some of this, if the disk is slow.
        more = {"wiredTigerEngineRuntimeConfig": "cache_size=2G"}
        admin.admin.command({"setParameter": 1, **more})
        async with (
            MongoSessionService(server.uri, database="d") as watched,
            MongoSessionService(server.uri, database="d") as service,
            followed(service, watched) as (session, followers),
        ):
            for name in admin.d.list_collection_names():
                images = {"changeStreamPreAndPostImages": {"enabled": True}}
                admin.d.command({"collMod": name, **images})
            for scope in ("", "app_", "user_"):
                large = new_event(**{f"{scope}big": scope[:1] * (LIMIT - 2000)})
                await service.append_event(session, large)
                await service.append_event(session, new_event(**{f"{scope}big": 1}))
            state = {"big": "x" * LIMIT, "app:big": "x" * LIMIT}
            other = await service.create_session(
                app_name="other", user_id=USER, state=state
            )
            await service.append_event(other, new_event(big=1, app_big=1))
            await service.delete_session(
                app_name="other", user_id=USER, session_id=other.id
            )
            everything = followers.pop()
            await everything.until(lambda: "deleted" in everything.kinds)
            await all_received(service, session, followers, is_lost=False)
