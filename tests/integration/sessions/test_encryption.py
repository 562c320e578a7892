"""Content that is encrypted by the application, on every path in and out."""

from __future__ import annotations

import asyncio
from pathlib import Path

from google.adk.sessions import InMemorySessionService
from pymongo import MongoClient
from support.encryption_hooks import (
    CANARY,
    KEY,
    SEALED,
    STATE,
    canary_event,
    clear_text,
    cluster_time,
)
from support.http_server import Client, may_read, serving
from support.subscriptions import Follower
from support.transfers import differences, moved

from mongo_session_service import Change, MongoSessionService
from mongo_session_service.http import live_app
from mongo_session_service.transfer import StoreSource, export, move

APP, USER = KEY["app_name"], KEY["user_id"]
APART = {"_id.revision": 0}
"""What a large initial state is found by."""


async def test_nothing_is_stored_in_clear(
    sealed: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    tmp_path: Path,
) -> None:
    """No collection and no entry of the oplog has what passed through the service."""
    since = cluster_time(admin)
    session = await sealed.create_session(**KEY, state=STATE)
    assert session.state == STATE
    event = canary_event(**{"user:name": CANARY, "app:motto": [CANARY], "temp:x": 1})
    async with sealed.consumer("failing", start="now") as consumer:
        running = asyncio.create_task(consumer.run(_fail, max_attempts=1))
        await sealed.append_event(session, event)
        state = {"own": CANARY, "app:motto": CANARY, "user:x": CANARY}
        await sealed.create_session(app_name=APP, user_id=USER, state=state)
        async with asyncio.timeout(60):
            while len([each async for each in consumer.dead_letters()]) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        running.cancel()
        letters = [each async for each in consumer.dead_letters()]

    fork = await sealed.fork_session(**KEY, new_session_id="fork", at_revision=1)
    before = await sealed.get_session_at(**KEY, revision=0)
    # Beyond 4 kB it is kept beside the events.
    large = {"own": [CANARY] * 200}
    await sealed.create_session(**{**KEY, "session_id": "large"}, state=large)
    large_fork = await sealed.fork_session(
        **{**KEY, "session_id": "large"}, new_session_id="large fork"
    )

    copy = f"{database}_copy"
    async with (
        MongoSessionService(mongodb_uri, database=copy, **SEALED) as other,
        StoreSource(sealed) as source,
    ):
        await move(source, other)
        await export(source, tmp_path / "sessions.jsonl")
        found = await sealed.get_session(**KEY)
        copied = await other.get_session(**KEY)
    clear = sorted(set(clear_text(admin, [database, copy], since)))
    apart = {
        name: admin[name].events.count_documents(APART) for name in (database, copy)
    }
    admin.drop_database(copy)

    assert clear == []
    assert apart == {database: 2, copy: 2}
    assert large_fork.state["own"] == large["own"]
    assert fork.events == [event]
    assert before is not None
    assert before.state["own"] == STATE["own"]
    assert found == copied
    assert found is not None
    assert found.events == [event]
    assert (tmp_path / "sessions.jsonl").read_text().count(CANARY) > 10
    told = {each.change.kind: each.change for each in letters}
    assert told["appended"].event == event
    assert told["created"].state_delta == {"own": CANARY}
    assert {each.error for each in letters} == {"ValueError"}


async def test_clear_text_would_be_found(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Without hooks, the same search finds it in every collection and the oplog."""
    since = cluster_time(admin)
    session = await service.create_session(**KEY, state=STATE)
    await service.append_event(session, canary_event())
    large = {"own": [CANARY] * 200}
    await service.create_session(app_name=APP, user_id=USER, state=large)
    assert admin[database].events.count_documents(APART) == 1

    clear = set(clear_text(admin, [database], since))
    names = ("sessions", "events", "app_states", "user_states")
    assert clear == {*(f"{database}.{each}" for each in names), "oplog: c admin.$cmd"}


async def _fail(change: Change) -> None:
    raise ValueError(change.json_text)


async def test_pushed_changes_are_decrypted(sealed: MongoSessionService) -> None:
    """Snapshots, events, and state that others set come as they were given."""
    session = await sealed.create_session(**KEY, state=STATE)
    async with (
        Follower(sealed.watch(**KEY)) as mine,
        Follower(sealed.watch(APP)) as all_of_app,
        Follower(sealed.watch(**KEY, after_revision=0)) as replay,
    ):
        event = canary_event(**{"app:motto": "new", "user:name": "Ada"})
        await sealed.append_event(session, event)
        await sealed.create_session(
            app_name=APP, user_id=USER, state={"own": 1, "user:name": "Bob"}
        )
        await mine.until(lambda: len(mine.told) == 3)
        await all_of_app.until(lambda: len(all_of_app.told) == 3)
        await replay.until(lambda: len(replay.told) >= 3)

    assert [each.kind for each in mine.told] == ["snapshot", "appended", "state"]
    assert mine.told[0].state == STATE
    assert mine.told[1].event == event
    assert mine.told[1].state_delta == event.actions.state_delta
    assert mine.told[2].state_delta == {"user:name": "Bob"}
    # Of the app and user it knows by the event, though sealed values never are equal.
    kinds = sorted(each.kind for each in all_of_app.told)
    assert kinds == ["appended", "created", "state"]
    assert replay.state["app:motto"] == "new"


async def test_browsers_receive_decrypted_events(sealed: MongoSessionService) -> None:
    """The live page's stream has them, its history included."""
    session = await sealed.create_session(**KEY, state=STATE)
    await sealed.append_event(session, canary_event())
    path = f"/apps/{APP}/users/{USER}/sessions/{KEY['session_id']}/changes"
    app = live_app(sealed, authorize=may_read)
    async with serving(app) as url, Client(f"{url}{path}", history="all") as client:
        snapshot, appended = await client.next(), await client.next()

    assert snapshot.data["state"] == session.state
    assert appended.data["state_delta"] == {"own": [CANARY, None]}
    assert appended.data["event"]["author"] == CANARY


async def test_an_import_is_recognised(
    sealed: MongoSessionService, old: InMemorySessionService
) -> None:
    """What was moved in is the same when it is moved again, and verifies as equal."""
    first, _ = await moved(old, sealed)
    again, problems = await moved(old, sealed)

    assert first.new == again.unchanged == first.sessions
    assert (again.events, again.states, problems) == (0, 0, [])
    assert await differences(old, sealed) == []


async def test_titles_are_no_display_names(
    sealed: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """A display name is sealed and stays so; a title in clear is not shown for it."""
    name = {"__session_metadata__": {"displayName": CANARY}}
    session = await sealed.create_session(**KEY, state=name)
    await sealed.append_event(session, canary_event(**name))

    stored = admin[database].sessions.find_one({})
    summary = await sealed.update_session(**KEY, title="In clear")
    loaded = await sealed.get_session(**KEY)

    assert stored is not None
    assert "title" not in stored
    assert summary.title == "In clear"
    assert loaded is not None
    assert loaded.state["__session_metadata__"] == {"displayName": CANARY}
