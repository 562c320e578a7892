"""What each release has stored is read, continued, pushed, exported and removed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pymongo import MongoClient
from support.golden import ADA, CONSUMER, GOLDEN, HOOKS, restore
from support.subscriptions import Follower, new_event

from mongo_session_service import Change, MongoSessionService, SessionSummary
from mongo_session_service.transfer import (
    JsonLinesSource,
    StoreSource,
    export,
    verify,
)

REVISION_OF_LETTER = 2

pytestmark = pytest.mark.parametrize(
    "file", sorted(GOLDEN.glob("*.json")), ids=lambda file: file.stem
)


@pytest.fixture
async def store(
    mongodb_uri: str, database: str, admin: MongoClient, file: Path
) -> AsyncIterator[MongoSessionService]:
    """This release on what another has stored."""
    restore(admin, database, file)
    async with MongoSessionService(mongodb_uri, database=database, **HOOKS) as service:
        yield service


async def all_sessions(store: MongoSessionService) -> list[SessionSummary]:
    return [
        each
        for app_name in ("all", "bank", "sealed", "weather")
        for each in (await store.find_sessions(app_name=app_name)).sessions
    ]


def key_of(session: SessionSummary) -> dict[str, str]:
    ids = (session.app_name, session.user_id, session.id)
    return dict(zip(("app_name", "user_id", "session_id"), ids, strict=True))


async def differences(store: MongoSessionService, exported: Path) -> list[str]:
    found: list[str] = []
    async with JsonLinesSource(exported) as source, StoreSource(store) as target:
        await verify(
            source,
            target,
            is_exact=True,
            on_difference=lambda each: found.append(str(each)),
        )
    return found


async def test_it_means_what_it_meant(store: MongoSessionService, file: Path) -> None:
    """Content is what that release has exported, and details are found."""
    assert await differences(store, file.with_suffix(".jsonl")) == []

    (titled,) = (await store.find_sessions(**ADA, title="A title")).sessions
    (waiting,) = (await store.find_sessions(**ADA, waiting=True)).sessions
    (turn,) = await store.find_turns(**ADA, status="ended")
    redacted = await store.get_session(**ADA, session_id="redacted")
    trimmed = await store.get_session(**ADA, session_id="trimmed")
    values = await store.get_session(**ADA, session_id="values")
    assert (titled.id, titled.labels) == ("details", {"stage": "test"})
    assert (waiting.id, waiting.waiting[0].call_id) == ("waiting", "c1")
    assert turn.session_id == "turn"
    assert redacted is not None
    assert redacted.events[1].content is not None
    assert redacted.events[1].content.parts[0].text == "[redacted]"
    assert trimmed is not None
    assert len(trimmed.events) == 2
    assert values is not None
    assert values.state["a.b"] == 2**70


async def test_it_goes_on(store: MongoSessionService) -> None:
    """Each session takes an append, which its subscribers receive."""
    found = await all_sessions(store)
    for each in found:
        key = key_of(each)
        async with Follower(store.watch(**key)) as follower:
            await store.append(**key, event=new_event("later", n="new"))
            await follower.until(lambda it=follower: len(it.told) == 2)
        session = await store.get_session(**key)
        assert session is not None
        assert session.events[-1].author == "later"
        assert session.state["n"] == follower.state["n"] == "new"
    assert len(found) == 14


async def test_consumers_read_it_from_the_beginning(store: MongoSessionService) -> None:
    """All that is in the logs; and the dead letter of that release can be replayed."""
    read: list[Change] = []

    async def handle(change: Change) -> None:
        read.append(change)

    async with store.consumer("new") as consumer:
        await consumer.run(handle, until_caught_up=True)
    async with store.consumer(CONSUMER) as consumer:
        (letter,) = [each async for each in consumer.dead_letters()]
        assert await consumer.replay_dead_letters(handle) == 1

    kinds = [each.kind for each in read[:-1]]
    events = sum(each.event_count for each in await all_sessions(store))
    assert (kinds.count("appended"), kinds.count("snapshot")) == (events, 1)
    assert letter.change.revision == read[-1].revision == REVISION_OF_LETTER


async def test_it_can_be_exported_and_changed(
    store: MongoSessionService, tmp_path: Path
) -> None:
    """Forks, trims and redactions of it are as of what this release has stored."""
    async with StoreSource(store) as source:
        await export(source, tmp_path / "again.jsonl")
    assert await differences(store, tmp_path / "again.jsonl") == []

    for each in await all_sessions(store):
        key = key_of(each)
        fork = await store.fork_session(**key)
        assert fork.events == (await store.get_session(**key)).events
        if fork.events:
            ids = [fork.events[-1].id]
            assert await store.redact_events(**key, event_ids=ids, forks=True) == 2
            assert await store.trim_session(**key, keep_last=1) >= 0


async def test_it_can_be_erased(
    store: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Nothing of its apps is left."""
    for app_name in ("all", "bank", "sealed", "weather"):
        await store.delete_app(app_name=app_name)
    for collection in ("sessions", "events", "app_states", "user_states", "imports"):
        assert admin[database][collection].count_documents({}) == 0
