"""Which filters a mongos can send to one shard."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support import routing

from mongo_session_service.model.records import SessionKey
from mongo_session_service.schema.indexes import EVENT_ONCE, INDEXES
from mongo_session_service.schema.sharding import SHARD_KEY, SHARDED
from mongo_session_service.sessions import queries
from mongo_session_service.storage.kernel import Storage

KEY = SessionKey("app", "ada", "s")
OTHER = KEY._replace(session_id="t")
APP, USER = {"_id.app_name": "app"}, {"_id.app_name": "app", "_id.user_id": "ada"}


@pytest.mark.parametrize(
    ("filter_", "added"),
    [
        (queries.all_events(KEY), USER),
        (queries.events_after(KEY, 3, 9), USER),
        (queries.events_until(KEY, 9, 3), USER),
        (queries.events_of_user("app", "ada"), USER),
        (queries.all_sessions("app", "ada"), USER),
        (queries.all_sessions("app", None), APP),
        (queries.all_user_states("app", None), APP),
        (queries.all_user_states("app", "ada"), {}),
        (queries.of_app("app", None), APP),
        (queries.of_app("app", KEY.event_id(3)), APP),
        (queries.of_app(None, None), {}),
        ({"_id": {"$in": [KEY.id, OTHER.id]}}, USER),
        ({"_id": {"$in": [KEY.id, {**OTHER.id, "user_id": "bob"}]}}, APP),
        ({"_id": {"$in": [KEY.id, {**KEY.id, "app_name": "b"}]}}, {}),
        ({"_id": {"$in": []}}, {}),
        ({"_id": {"$in": ["app"]}}, {}),
        ({"_id": KEY.id}, {}),
        ({"_id": "app"}, {}),
        (queries.expired_filter(1.0), {}),
    ],
)
def test_a_mongos_gets_the_fields_that_a_range_has_in_common(
    filter_: dict[str, Any], added: dict[str, Any]
) -> None:
    """It sees the shard of a user's documents; a replica set gets the filter alone."""
    behind, alone = (SimpleNamespace(is_sharded=it) for it in (True, False))

    assert Storage.routed(behind, filter_) == {**filter_, **added}
    assert Storage.routed(alone, filter_) is filter_


def test_unique_indexes_begin_with_the_shard_key() -> None:
    """MongoDB keeps them across shards only then."""
    unique = [index for index in INDEXES if index.unique]

    assert unique == [EVENT_ONCE]
    assert list(EVENT_ONCE.keys)[: len(SHARD_KEY)] == list(SHARD_KEY)


@pytest.mark.parametrize(
    ("name", "command", "is_to_one"),
    [
        ("find", {"find": "events", "filter": {"_id": KEY.id}}, True),
        ("find", {"find": "events", "filter": {**USER, "x": 1}}, True),
        ("find", {"find": "events", "filter": {"$and": [APP, USER]}}, True),
        ("find", {"find": "events", "filter": APP}, False),
        ("find", {"find": "events", "filter": {"$or": [USER]}}, False),
        ("find", {"find": "events", "filter": queries.all_events(KEY)}, False),
        ("delete", {"delete": "sessions", "deletes": [{"q": {}}]}, False),
        ("update", {"update": "sessions", "updates": [{"q": {"_id": KEY.id}}]}, True),
        ("insert", {"insert": "sessions", "documents": [{"_id": KEY.id}]}, True),
        ("count", {"count": "sessions"}, False),
        (
            "aggregate",
            {
                "aggregate": "app_states",
                "pipeline": [{"$unionWith": {"coll": "events", "pipeline": []}}],
            },
            False,
        ),
        (
            "aggregate",
            {
                "aggregate": "app_states",
                "pipeline": [{"$lookup": {"from": "sessions", "as": "x"}}],
            },
            False,
        ),
    ],
)
def test_commands_are_judged_by_equality(
    name: str, command: dict[str, Any], *, is_to_one: bool
) -> None:
    """The judge of the contract tests takes nothing but equality for an address."""
    (access,) = routing.accesses(name, command)

    assert access.is_targeted is is_to_one
    assert access.collection in SHARDED


def test_a_range_of_one_user_is_no_reason_to_ask_all_shards() -> None:
    """Only commands that concern many users may, each for a reason on the list."""
    of_app = queries.all_sessions("app", None) | APP
    of_one = queries.all_sessions("app", "ada") | APP
    by_label = {"labels": "x"}

    judged = [
        routing.broadcast_to_one(routing.Access("aggregate", "sessions", each))
        for each in (of_app, of_one, of_one | USER, by_label)
    ]

    assert judged == [False, True, False, True]
