"""What a move does to a target that is not empty."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.sessions import InMemorySessionService
from pymongo import MongoClient
from support.sample_data import fill
from support.transfers import (
    IDS,
    LATER,
    NAMED,
    SKIP,
    differences,
    everything,
    moved,
    say,
)

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import ConflictError
from mongo_session_service.transfer import Policies, StoreSource, move


async def test_documents_are_those_the_service_writes(
    service: MongoSessionService, mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """What is imported has the form of what was appended, and a mark."""
    prefix = {"database": database, "collection_prefix": "direct_"}
    async with MongoSessionService(mongodb_uri, **prefix) as direct:
        await fill(direct)
        async with StoreSource(direct) as source:
            await move(source, service)

    written = admin[database]
    # Nobody who hears of an imported event is told what waited then.
    events = written.direct_events.find({}, {"waiting": 0}).sort("_id")
    mark = {"copied_by": "import"}
    assert list(written.events.find().sort("_id")) == [it | mark for it in events]
    assert list(written.sessions.find().sort("_id")) == [
        it | mark for it in written.direct_sessions.find().sort("_id")
    ]
    assert [each["state"] for each in written.user_states.find().sort("_id")] == [
        each["state"] for each in written.direct_user_states.find().sort("_id")
    ]


async def test_an_imported_session_goes_on(
    old: InMemorySessionService, service: MongoSessionService
) -> None:
    """What was moved can be appended to, and state is what it was plus the delta."""
    await moved(old, service)

    await say(service, "and now?", topic="new", **{"app:count": 99})

    session = await service.get_session(**IDS)
    assert session is not None
    assert [len(session.events), session.events[-1].id] == [7, "and now?"]
    assert session.state["topic"] == "new"
    assert session.state["app:count"] == 99
    assert session.state["keep"] == [1, {"a": None}]


async def test_a_second_move_catches_up(
    old: InMemorySessionService, service: MongoSessionService
) -> None:
    """What the old service stored after the first move is added by the second."""
    await moved(old, service)
    await say(old, "late", topic="late", **{"app:count": 7, "user:last": 8})
    await old.create_session(app_name="bank", user_id="new", session_id="n", state={})

    result, _ = await moved(old, service)

    assert (result.caught_up, result.new, result.unchanged) == (1, 1, 4)
    assert (result.events, result.states) == (1, 2)
    assert await differences(old, service) == []


async def test_a_session_that_continued_in_the_target_is_left_alone(
    old: InMemorySessionService, service: MongoSessionService
) -> None:
    """A session that users continued after the switch is ahead, not in conflict."""
    await moved(old, service)
    await say(service, "after the switch", topic="newer")

    result, problems = await moved(old, service)

    assert (result.ahead, result.unchanged, problems) == (1, 4, [])
    session = await service.get_session(**IDS)
    assert session is not None
    assert session.state["topic"] == "newer"


async def diverge(old: Any, service: MongoSessionService) -> None:
    """Let one session go on in both."""
    await moved(old, service)
    await say(old, "in the old", topic="old")
    await say(service, "in the new", topic="new")


async def test_a_conflict_stops_a_move_or_is_skipped(
    old: InMemorySessionService,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """Nothing under a taken id is changed, and it is named."""
    await diverge(old, service)
    before = everything(admin, database)

    with pytest.raises(ConflictError, match="session 's1' of user 'ada' in app 'weat"):
        await moved(old, service)
    assert everything(admin, database) == before

    result, problems = await moved(old, service, SKIP)
    assert (result.skipped, result.unchanged, result.is_complete) == (1, 4, False)
    assert problems == [
        f"{NAMED.format('s1', 'ada')}: event 7 ('in the old') differs; state differs"
    ]
    assert everything(admin, database)["sessions"] == before["sessions"]


async def test_a_session_without_events_is_known_by_its_creation(
    old: InMemorySessionService, service: MongoSessionService
) -> None:
    """An empty session of the target's own under the same id is a conflict."""
    await service.create_session(**IDS, state={"mine": True})

    result, problems = await moved(old, service, SKIP)

    assert (result.skipped, result.new) == (1, 4)
    assert "state differs" in problems[0]


async def test_an_import_does_not_bring_back_redacted_events(
    old: InMemorySessionService, service: MongoSessionService
) -> None:
    """A session with redacted events is left alone and named."""
    await moved(old, service)
    before = await service.get_session(**IDS)
    assert before is not None
    ids = [before.events[4].id]
    await service.redact_events(**IDS, event_ids=ids, state=True)
    redacted = await service.get_session(**IDS)
    await say(old, "in the old")

    result, problems = await moved(old, service, SKIP)

    assert (result.skipped, result.unchanged) == (1, 4)
    assert problems[0].startswith(f"{NAMED.format('s1', 'ada')}: event 5 (")
    assert await service.get_session(**IDS) == redacted


async def test_shared_state_that_changed_in_the_target_only_is_left_alone(
    old: InMemorySessionService, service: MongoSessionService
) -> None:
    """State that the new app has set since stays, and the rest is caught up with."""
    await moved(old, service)
    new = {"app_name": "weather", "user_id": "new", "session_id": "n"}
    await service.create_session(**new, state={"app:count": 1000})
    await say(old, "in the old", **{"user:last": 5000})

    result, problems = await moved(old, service)

    assert (result.ahead_states, result.states, result.caught_up) == (1, 1, 1)
    assert (result.is_complete, problems) == (True, [])
    session = await service.get_session(**IDS)
    assert session is not None
    assert session.state["app:count"] == 1000


async def test_shared_state_that_changed_in_both_is_a_conflict(
    old: InMemorySessionService, service: MongoSessionService
) -> None:
    """State that the new app has set since is not overwritten by a catch-up."""
    await moved(old, service)
    new = {"app_name": "weather", "user_id": "new", "session_id": "n"}
    await service.create_session(**new, state={"app:count": 1000})
    await say(old, "in the old", **{"user:last": 5000, "app:count": 7})

    with pytest.raises(ConflictError, match="state of app 'weather'"):
        await moved(old, service)
    result, problems = await moved(old, service, SKIP)

    assert (result.skipped_states, result.states) == (1, 1)
    assert "state of app 'weather': it was changed in the target" in problems
    assert (await service.get_user_state(app_name="weather", user_id="ada"))[
        "last"
    ] == 5000


async def test_state_is_known_as_imported_after_a_kill(
    old: InMemorySessionService,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """State whose note was not written any more is still no conflict later."""
    notes = admin[database].imports
    await moved(old, service)
    notes.delete_many({})  # as a first import leaves it

    await moved(old, service)
    await say(old, "late", **{"app:count": 7, "user:last": 8})
    result, _ = await moved(old, service)
    notes.update_many({}, {"$inc": {"revision": -1}})  # as a later one does
    await moved(old, service)
    await say(old, "later", LATER + 1, **{"app:count": 9, "user:last": 10})
    again, _ = await moved(old, service)

    assert (result.states, again.states) == (2, 2)
    assert await differences(old, service) == []


async def test_a_dry_run_counts_and_changes_nothing(
    old: InMemorySessionService,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
) -> None:
    """A dry run counts what would move and what could not, and writes nothing."""
    await diverge(old, service)
    await say(old, "more", at=LATER + 1)
    await old.create_session(app_name="bank", user_id="new", session_id="n", state={})
    before = everything(admin, database)

    result, problems = await moved(old, service, Policies(is_dry_run=True))

    assert (result.new, result.skipped, result.unchanged) == (1, 1, 4)
    assert len(problems) == 1
    assert everything(admin, database) == before


async def test_a_dry_run_leaves_an_empty_database_empty(
    old: InMemorySessionService, mongodb_uri: str, new_database: str, admin: MongoClient
) -> None:
    """Not even collections are created by a dry run."""
    service = MongoSessionService(mongodb_uri, database=new_database)

    result, _ = await moved(old, service, Policies(is_dry_run=True))
    await service.close()

    assert (result.new, result.events) == (5, 24)
    assert admin[new_database].list_collection_names() == []
