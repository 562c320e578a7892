"""Pages of a search: what the server does for them, and who can read on."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Iterator
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import bson
import pytest
from pymongo import MongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.metadata import StoredDetails
from mongo_session_service.service import backends_of
from mongo_session_service.sessions import search
from mongo_session_service.sessions.search import PagePlace
from mongo_session_service.storage.snapshots import query_stages

MOMENT = 1.8e9
PLACE: Any = SimpleNamespace(routed=lambda filter_: filter_)
AT_ONCE = 6
"""Sessions of an app that were created at the same moment."""


def new_search(
    app: str, user_id: Any, title: Any, labels: Any, where: Any, **options: Any
) -> search.Search:
    details = StoredDetails.given(is_new=True, title=title, labels=labels)
    return search.new_search(app, user_id, details, where, **options)


def explained(
    admin: MongoClient,
    database: str,
    stages: list[dict[str, Any]],
    collection: str = "sessions",
) -> tuple[set[str], set[str], dict[str, int]]:
    """The stages and indexes of the plan that was chosen, and what it came to."""
    command = {"aggregate": collection, "pipeline": stages, "cursor": {}}
    plan = admin[database].command({"explain": command, "verbosity": "executionStats"})
    if "stages" in plan:
        plan = plan["stages"][0]["$cursor"]
    chosen = list(stages_of(plan["queryPlanner"]["winningPlan"]))
    indexes = {each["indexName"] for each in chosen if "indexName" in each}
    return {each["stage"] for each in chosen}, indexes, plan["executionStats"]


def stages_of(plan: Any) -> Iterator[dict[str, Any]]:
    """All stages anywhere in a plan."""
    if isinstance(plan, dict):
        if "stage" in plan:
            yield plan
        plan = list(plan.values())
    if isinstance(plan, list):
        for each in plan:
            yield from stages_of(each)


@pytest.fixture
def sessions(
    service: MongoSessionService, database: str, admin: MongoClient
) -> MongoClient:
    """A database of 6,000 sessions, of two apps with two users each."""
    assert service
    documents = [
        {
            "_id": {"app_name": app, "user_id": user, "session_id": f"s{number}"},
            "state": {"n": number % 7},
            "revision": 0,
            "create_time": MOMENT + number // 3,
            "update_time": MOMENT + number,
            **({"title": f"T{number % 30}"} if number % 3 == 0 else {}),
            **({"labels": labels(number)} if number % 2 == 0 else {}),
            **({"waiting": []} if number % 50 == 0 else {}),
        }
        for app in ("app", "other")
        for user in ("ada", "bob")
        for number in range(1500)
    ]
    admin[database].sessions.insert_many(documents)
    return admin


def labels(number: int) -> list[dict[str, str]]:
    return [
        {"name": "number", "value": str(number)},
        {"name": "team", "value": "blue" if number % 20 else "red"},
    ]


@pytest.mark.parametrize(
    ("search", "index"),
    [
        ({"user_id": "ada"}, "by_user"),
        ({}, "by_app"),
        ({"title": "T3"}, "by_title"),
        ({"labels": {"team": "red"}}, "by_label"),
        ({"user_id": "ada", "labels": {"team": "red"}}, "by_label"),
        ({"waiting": True}, "by_waiting"),
    ],
)
@pytest.mark.usefixtures("sessions")
def test_a_page_costs_what_it_shows(
    database: str, admin: MongoClient, search: dict[str, Any], index: str
) -> None:
    """Wherever a page begins, its index leads there, and no more is looked at."""
    wanted = dict.fromkeys(("user_id", "title", "labels")) | search
    for newest_first, after in itertools.product((True, False), (None, 700, 1490)):
        found = new_search(
            "app", **wanted, where=None, newest_first=newest_first, hooks=NO_HOOKS
        )
        damaged = query_stages(PLACE, found.damaged_query(6, MOMENT))
        *_, stats = explained(admin, database, damaged)
        assert stats["totalDocsExamined"] <= AT_ONCE
        assert stats["totalKeysExamined"] <= 2 * AT_ONCE
        place = PagePlace(MOMENT + after // 3, "bob", f"s{after}") if after else None
        stages = query_stages(PLACE, found.page_query(place, 6, MOMENT))

        shape, indexes, stats = explained(admin, database, stages)

        assert indexes == {index}
        assert "SORT" not in shape
        assert stats["totalDocsExamined"] <= 6 + AT_ONCE
        assert stats["totalKeysExamined"] <= 6 + 2 * AT_ONCE


async def test_a_page_of_families_costs_what_a_page_of_sessions_costs(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Of 10,000 sessions in 3,000 families it reads what it returns, by an index."""
    owner = {"app_name": "app", "user_id": "bob"}
    admin[database].sessions.insert_many(
        {
            "_id": {**owner, "session_id": f"s{n:05}"},
            "state": {},
            "revision": 1,
            "create_time": MOMENT + n,
            "update_time": MOMENT + n,
            **({"family": f"f{n % 3000:04}"} if n >= 1000 else {}),
        }
        for n in range(10_000)
    )
    admin[database].families.insert_many(
        {
            "_id": {**owner, "family": f"f{n:04}"},
            "create_time": MOMENT + n,
            "shown": f"s{n + 3000 * (1 + n % 2):05}",
            "members": [
                {"id": f"s{n + 3000 * version:05}", "created": MOMENT + n}
                for version in range(1, 3)
            ],
        }
        for n in range(3000)
    )
    found = new_search(
        "app", "bob", None, None, None, newest_first=True, hooks=NO_HOOKS, families=True
    )
    for after in (None, PagePlace(MOMENT + 5002, "bob", "s05002")):
        for query, index in (
            (found.page_query(after, 51, MOMENT), "by_user_family"),
            (found.families_query(after, 51), "by_user"),
        ):
            stages = query_stages(PLACE, query)
            shape, indexes, stats = explained(admin, database, stages, query.collection)
            assert indexes == {index}
            assert "SORT" not in shape
            assert stats["totalDocsExamined"] <= 52
            assert stats["totalKeysExamined"] <= 53

    shown: list[tuple[str, int]] = []
    token: str | None = ""
    while token is not None:
        page = await service.find_sessions(
            **owner, families=True, limit=700, page_token=token or None
        )
        shown += [(each.id, each.branches) for each in page.sessions]
        token = page.next_page_token
    assert shown == [
        version
        for n in range(2999, -1, -1)
        for version in (
            *([(f"s{n:05}", 1)] if n < 1000 else []),
            (f"s{n + 3000 * (1 + n % 2):05}", 2),
        )
    ]
    members = {f"_id.{name}": it for name, it in owner.items()} | {"family": "f0000"}
    _, indexes, stats = explained(admin, database, [{"$match": members}])
    assert (indexes, stats["totalDocsExamined"]) == ({"by_user_family"}, 3)


async def test_a_state_key_can_have_an_index(
    service: MongoSessionService, database: str, sessions: MongoClient
) -> None:
    """An index on a key of state, made as the docs say, is used for its values."""
    collection = sessions[database].sessions
    keys = ("_id.app_name", "state.n", "create_time", "_id.user_id", "_id.session_id")
    collection.create_index([(key, 1) for key in keys], name="by_n")
    found = new_search(
        "app", None, None, None, {"n": 3}, newest_first=True, hooks=NO_HOOKS
    )
    stages = query_stages(PLACE, found.page_query(None, 6, MOMENT))

    _, indexes, _ = explained(sessions, database, stages)

    assert indexes == {"by_n"}
    page = await service.find_sessions(app_name="app", where={"n": 3}, limit=5)
    assert [(each.state or {})["n"] for each in page.sessions] == [3] * 5


async def test_pages_go_on_in_another_process(
    mongodb_uri: str, database: str, sessions: MongoClient
) -> None:
    """A token is good in every service on a database, and nothing is stored for it."""
    assert sessions
    services = [MongoSessionService(mongodb_uri, database=database) for _ in range(5)]
    try:
        first = await asyncio.gather(
            *(each.find_sessions(app_name="app", limit=2) for each in services)
        )
        assert len({page.next_page_token for page in first}) == 1
        for each in services:
            token = first[0].next_page_token
            page = await each.find_sessions(
                app_name="app", limit=2, page_token=token, with_state=False
            )
            assert [each.id for each in page.sessions] == ["s1497", "s1499"]
    finally:
        for each in services:
            await each.close()
    assert [each["_id"] for each in sessions[database].metadata.find()] == ["schema"]


FORGED: list[dict[str, Any]] = [
    {"create_time": {"$gt": 0}, "user_id": "ada", "session_id": "s"},
    {"create_time": True, "user_id": "ada", "session_id": "s"},
    {"create_time": "1", "user_id": "ada", "session_id": "s"},
    {"create_time": 1.0, "user_id": {"$gt": ""}, "session_id": "s"},
    {"create_time": 1.0, "user_id": bson.Code("ada"), "session_id": "s"},
    {"create_time": 1.0, "user_id": "ada", "session_id": None},
    {"create_time": 1.0, "user_id": "ada"},
    {"create_time": 1.0, "user_id": "ada", "session_id": "s", "$where": "1"},
    {"user_id": "ada", "create_time": 1.0, "session_id": "s"},
]


def test_a_forged_place_has_the_types_of_one() -> None:
    """Whoever computes a token's digest still cannot send anything but a place."""
    found = new_search("app", None, None, None, None, newest_first=True, hooks=NO_HOOKS)
    place = PagePlace(1.0, "ada", "s")
    assert search.place_in_token(search.page_token_after(place, found), found) == place

    contents = [bson.encode(each) for each in FORGED]
    whole = bson.encode(place._asdict())
    for content in [*contents, whole + b"\0", whole[:-1], b"", b"\xff" * 40]:
        digest = blake2b(content + found.bytes, digest_size=16).digest()
        forged = base64.urlsafe_b64encode(digest + content).rstrip(b"=").decode()
        with pytest.raises(InvalidInputError, match="not returned by this search"):
            search.place_in_token(forged, found)


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.usefixtures("sessions")
async def test_a_token_without_ids_leads_to_its_place(
    service: MongoSessionService, newest_first: Any
) -> None:
    """To one of those of the same time, or, if it is gone, before all of these."""
    storage = (await backends_of(service).backend()).storage
    found = new_search(
        "app", None, "T3", None, None, newest_first=newest_first, hooks=NO_HOOKS
    )
    page = await search.read_page(storage, found, None, 9)
    places = [place for place, _ in page.found.values()]
    gone = PagePlace(MOMENT, "eve", "s1")

    async def led_to(place: PagePlace) -> PagePlace:
        token = search.page_token_after(search.without_ids(place), found)
        content = base64.urlsafe_b64decode(token + "==")
        assert not any(it in content for it in (b"ada", b"bob", b"eve", b"s1"))
        return await search.find_place(storage, token, found)

    assert [await led_to(each) for each in places] == places
    others = [PagePlace(MOMENT, user, "s") for user in ("ada", "zoe")]
    place = await led_to(gone)
    assert all((each < place) == newest_first for each in others)
    token = search.page_token_after(search.without_ids(gone), found)
    with pytest.raises(InvalidInputError, match="not returned by this search"):
        await service.find_sessions(app_name="app", page_token=token)


@pytest.mark.parametrize("key", ["text", "user:text"])
async def test_large_states_make_shorter_pages(
    service: MongoSessionService, key: str
) -> None:
    """A page holds what a reply or two do, and the next ones have the others."""
    for number in range(4):
        owner = {"app_name": "app", "user_id": str(number)}
        await service.create_session(**owner, state={key: "x" * 6_000_000})

    seen: list[str] = []
    token = None
    while token is not None or not seen:
        page = await service.find_sessions(app_name="app", page_token=token)
        texts = [(each.state or {})[key] for each in page.sessions]
        assert sum(map(len, texts)) < 16_000_000
        seen += [each.user_id for each in page.sessions]
        token = page.next_page_token

    assert seen == ["3", "2", "1", "0"]
