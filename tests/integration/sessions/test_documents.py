"""What is stored, as anyone with mongosh sees and queries it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types
from pymongo import MongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions import queries
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.snapshots import query_stages

KEY = SessionKey("my_app", "user-1", "s")


class Place(SimpleNamespace):
    routed = Storage.routed


REPLICA_SET, BEHIND_MONGOS = Place(is_sharded=False), Place(is_sharded=True)


async def fill(service: MongoSessionService, *, events: int = 1) -> None:
    session = await service.create_session(
        **KEY._asdict(),
        state={"topic": "x", "a.b": 1, "app:mode": "m", "user:n": "Ada"},
    )
    for number in range(events):
        event = Event(
            id=f"e{number}",
            author="weather_agent",
            invocation_id="i",
            content=types.Content(role="model", parts=[types.Part(text="sunny")]),
            actions=EventActions(state_delta={"n": number, "app:n": 2**70}),
            timestamp=1.7e9 + number,
        )
        await service.append_event(session, event)


async def test_layout(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Sessions embed state, events refer to them, app and user state stand apart."""
    await fill(service)
    db = admin[database]

    (session,) = db.sessions.find()
    assert session.pop("update_time") >= session.pop("create_time") > 1.7e9
    assert session == {
        "_id": {"app_name": "my_app", "user_id": "user-1", "session_id": "s"},
        "state": {"topic": "x", "a%2Eb": 1, "n": 0},
        "initial_state": {"topic": "x", "a%2Eb": 1},
        "revision": 1,
        "event_time": 1.7e9,
    }
    (event,) = db.events.find()
    assert event["_id"] == {**session["_id"], "revision": 1}
    assert event["event"]["content"] == {"parts": [{"text": "sunny"}], "role": "model"}
    assert event["event"]["actions"]["state_delta"] == {
        "n": 0,
        "app:n": {"%json": str(2**70)},
    }
    assert event["wrapped"] is True
    assert list(db.app_states.find()) == [
        {
            "_id": "my_app",
            "state": {"mode": "m", "n": {"%json": str(2**70)}},
            "revision": 2,
        }
    ]
    assert list(db.user_states.find()) == [
        {
            "_id": {"app_name": "my_app", "user_id": "user-1"},
            "state": {"n": "Ada"},
            "revision": 1,
        }
    ]
    schema = {"_id": "schema", "version": 1}
    assert db.metadata.find_one({"_id": "schema"}) == schema


async def test_collections_take_the_prefix(
    mongodb_uri: str, new_database: str, admin: MongoClient
) -> None:
    """With a prefix, no collection is named without it."""
    service = MongoSessionService(
        mongodb_uri, database=new_database, collection_prefix="agents_"
    )
    async with service:
        await fill(service)
        found = await service.get_session(**KEY._asdict())

    assert found is not None
    assert found.state["app:mode"] == "m"
    names = admin[new_database].list_collection_names()
    assert sorted(names) == [
        f"agents_{name}"
        for name in (
            "app_states",
            "checkpoints",
            "dead_letters",
            "events",
            "families",
            "leases",
            "metadata",
            "partials",
            "sessions",
            "user_states",
        )
    ]


def stages_of(plan: Any) -> set[str]:
    """The names of all stages anywhere in an explained plan."""
    if isinstance(plan, dict):
        inner = set().union(*map(stages_of, plan.values()))
        return inner | (
            {plan["stage"]} if isinstance(plan.get("stage"), str) else set()
        )
    if isinstance(plan, list):
        return set().union(*map(stages_of, plan))
    return set()


@pytest.mark.parametrize(
    ("collection", "query", "returned"),
    [
        ("sessions", queries.all_sessions("my_app", None), 15),
        ("sessions", queries.all_sessions("my_app", "user-1"), 5),
        ("user_states", queries.all_user_states("my_app", None), 3),
        ("user_states", queries.all_user_states("my_app", "user-1"), 1),
        ("events", queries.all_events(KEY._replace(session_id="s1")), 2),
        ("events", queries.events_after(KEY._replace(session_id="s1"), 1, 9), 1),
        ("events", queries.all_sessions("my_app", "user-1"), 4),
        ("events", queries.event_by_id(KEY._replace(session_id="s1"), "e1"), 1),
    ],
)
async def test_reads_examine_only_what_they_return(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    collection: str,
    query: dict[str, Any],
    returned: int,
) -> None:
    """Each query shape is an index range: no other document or key is looked at.

    So it is in the form for a mongos, whose shards have the same indexes.
    """
    for app in ("my_app", "my_app2"):
        for user in ("user-1", "user-10", "user-2"):
            for number in range(5):
                session = await service.create_session(
                    app_name=app,
                    user_id=user,
                    session_id=f"s{number}",
                    state={"user:k": 1},
                )
                if number < 2:
                    for id_ in ("e0", "e1"):
                        await service.append_event(session, Event(id=id_, author="x"))

    for filter_ in (query, BEHIND_MONGOS.routed(query)):
        plan = admin[database].command(
            {
                "explain": {"find": collection, "filter": filter_},
                "verbosity": "executionStats",
            }
        )

        stats = plan["executionStats"]
        assert stages_of(plan["queryPlanner"]["winningPlan"]) & {"IXSCAN", "IDHACK"}
        assert stats["nReturned"] == returned
        assert stats["totalDocsExamined"] == returned
        assert stats["totalKeysExamined"] <= returned + 1


@pytest.mark.parametrize("place", [BEHIND_MONGOS, REPLICA_SET])
async def test_recent_events_are_read_without_sorting(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    place: Place,
) -> None:
    """The latest events come off the end of the index, however long the history."""
    await fill(service, events=50)
    (wanted,) = queries.event_queries(KEY, GetSessionConfig(num_recent_events=5))

    plan = admin[database].command(
        {
            "explain": {
                "aggregate": "events",
                "pipeline": query_stages(place, wanted),
                "cursor": {},
            },
            "verbosity": "executionStats",
        }
    )

    assert "SORT" not in stages_of(plan["queryPlanner"]["winningPlan"])
    assert plan["executionStats"]["totalDocsExamined"] == 5
