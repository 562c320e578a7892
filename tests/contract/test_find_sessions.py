"""Finding sessions, page by page."""

from __future__ import annotations

import random
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.platform import time as platform_time
from support.fake_clock import Clock

from mongo_session_service import InvalidInputError, MongoSessionService

APP = {"app_name": "app"}
ADA = {**APP, "user_id": "ada"}


async def fill(service: MongoSessionService) -> Clock:
    """Give an app ten sessions: s0 to s7 of ada, two at each moment, and two of bob."""
    clock = Clock.set()
    for number in range(8):
        await service.create_session(
            **ADA,
            session_id=f"s{number}",
            state={"n": number, "parity": ["even", "odd"][number % 2]},
            title=f"T{number % 3}",
            labels={"number": str(number), "team": ["red", "blue"][number % 2]},
        )
        clock.now += number % 2
    for number in range(2):
        await service.create_session(
            **APP, user_id="bob", session_id=f"b{number}", labels={"team": "red"}
        )
        clock.now += 1
    await service.create_session(app_name="other", user_id="ada", session_id="o")
    return clock


async def find(service: MongoSessionService, **search: Any) -> list[str]:
    """The ids of all that a search finds, over all its pages."""
    found: list[str] = []
    page = await service.find_sessions(**search)
    while True:
        found += [each.id for each in page.sessions]
        if page.next_page_token is None:
            return found
        assert page.sessions
        page = await service.find_sessions(page_token=page.next_page_token, **search)


async def test_pages_are_in_the_order_of_creation(ours: MongoSessionService) -> None:
    """Pages of any size, in either direction, have each session once, in order."""
    await fill(ours)
    everything = [*(f"s{number}" for number in range(8)), "b0", "b1"]

    for limit in (1, 3, 4, 9, 10, 50):
        assert await find(ours, **APP, limit=limit) == everything[::-1]
        oldest = await find(ours, **APP, limit=limit, newest_first=False)
        assert oldest == everything
        assert await find(ours, **ADA, limit=limit) == everything[7::-1]
    assert await find(ours, app_name="none") == []


async def test_an_item_has_details_and_state(ours: MongoSessionService) -> None:
    """Its state is as list_sessions has it."""
    clock = Clock.set()
    state = {"own": [1, {"a.b": 2**70}], "user:u": 1, "app:a": {"x": 1}}
    details: dict[str, Any] = {"title": None, "labels": {"a": "b"}, "ttl": 60}
    session = await ours.create_session(
        **ADA, session_id="s", state=state | {"temp:t": 1}, **details
    )
    event = Event(author="x", actions=EventActions(state_delta={"more": None}))
    await ours.append_event(session, event)
    await ours.create_session(**APP, user_id="bob", session_id="b")

    bobs, item = (await ours.find_sessions(**APP)).sessions
    (same,) = (await ours.find_sessions(**ADA)).sessions
    (stateless,) = (await ours.find_sessions(**ADA, with_state=False)).sessions

    assert bobs.state == {"app:a": {"x": 1}}
    assert item == same
    assert item.model_dump() == {
        **ADA,
        **details,
        "id": "s",
        "state": {**state, "more": None},
        "revision": 1,
        "log_begins": 0,
        "create_time": clock.now,
        "last_update_time": event.timestamp,
        "expire_time": clock.now + 60,
        "waiting": (),
        "waiting_more": 0,
        "root_id": None,
        "branches": 1,
    }
    listed = await ours.list_sessions(**ADA)
    assert [each.state for each in listed.sessions] == [item.state]
    assert stateless == item.model_copy(update={"state": None})


async def touch(service: MongoSessionService, user_id: str, session_id: str) -> None:
    """Append to a session, whose last update is now."""
    session = await service.get_session(**APP, user_id=user_id, session_id=session_id)
    assert session is not None
    event = Event(author="x", timestamp=platform_time.get_time())
    await service.append_event(session, event)


async def test_pages_are_in_the_order_of_updates(ours: MongoSessionService) -> None:
    """A user's pages are ordered by the last event; an app's cannot be."""
    clock = await fill(ours)
    for number in (5, 2, 6):
        clock.now += 1
        await touch(ours, "ada", f"s{number}")
    of_ada = [f"s{number}" for number in (0, 1, 3, 4, 7, 5, 2, 6)]
    by: dict[str, Any] = {"order_by": "update_time"}

    for limit in (1, 3, 50):
        assert await find(ours, **ADA, **by, limit=limit) == of_ada[::-1]
        oldest = await find(ours, **ADA, **by, limit=limit, newest_first=False)
        assert oldest == of_ada
    of_team = await find(ours, **ADA, **by, labels={"team": "red"})
    assert of_team == ["s6", "s2", "s4", "s0"]

    with pytest.raises(InvalidInputError, match="name a user_id"):
        await ours.find_sessions(**APP, **by)


@pytest.mark.parametrize("newest_first", [True, False])
async def test_unchanged_sessions_are_found_once(
    ours: MongoSessionService, *, newest_first: bool
) -> None:
    """While others are appended to, pages have each of them exactly once."""
    clock = await fill(ours)
    search: dict[str, Any] = {"order_by": "update_time", "newest_first": newest_first}
    found: list[str] = []
    token = None
    for moved in ("s1", "s6", "s1", "s5", "s6"):
        page = await ours.find_sessions(**ADA, **search, limit=2, page_token=token)
        found += [each.id for each in page.sessions]
        token = page.next_page_token
        if token is None:
            break
        clock.now += 1
        await touch(ours, "ada", moved)

    still = [each for each in found if each not in {"s1", "s5", "s6"}]
    assert sorted(still) == ["s0", "s2", "s3", "s4", "s7"]


async def test_titles_and_labels_find_sessions(ours: MongoSessionService) -> None:
    """A session is found by its title, and by any of its labels, or several at once."""
    await fill(ours)

    async def found(**search: Any) -> list[str]:
        return await find(ours, **APP, newest_first=False, limit=2, **search)

    assert await found(title="T1") == ["s1", "s4", "s7"]
    assert await found(title="T") == []
    assert await found(labels={"team": "red"}) == ["s0", "s2", "s4", "s6", "b0", "b1"]
    assert await found(user_id="bob", labels={"team": "red"}) == ["b0", "b1"]
    assert await found(labels={"team": "red", "number": "4"}) == ["s4"]
    assert await found(labels={"team": "4"}) == []
    assert await found(labels={"team": "red"}, title="T0") == ["s0", "s6"]
    assert len(await found(labels={}, where={})) == 10


SAME: list[tuple[Any, Any]] = [
    ("a", "a"),
    ("", ""),
    (True, True),
    (None, None),
    (1, 1.0),
    (2**70, 2**70),
    ("\ud800", "\ud800"),
]
OTHER: list[tuple[Any, Any]] = [
    (True, 1),
    (1, True),
    (0, False),
    ("1", 1),
    ("a", "A"),
    (None, ""),
    (["a"], "a"),
    ([None], None),
    ([1, 2], 2),
    ({"a": 1}, "a"),
    (2**70, 2**70 + 1),
    (2**70, 2.0**70),
    (2.0**63, 2**63),
]


async def test_values_find_equal_values_only(ours: MongoSessionService) -> None:
    """A value finds sessions whose state has it, and none that only comes near it."""
    for number, (stored, _) in enumerate(SAME + OTHER):
        state = {f"a.$%{number}": stored}
        await ours.create_session(**ADA, session_id=f"s{number}", state=state)

    for number, (_, wanted) in enumerate(SAME + OTHER):
        found = await find(ours, **ADA, where={f"a.$%{number}": wanted})
        assert found == ([f"s{number}"] if number < len(SAME) else []), number
    assert await find(ours, **ADA, where={"missing": None}) == []


async def test_no_operator_reaches_the_server(ours: MongoSessionService) -> None:
    """What looks like an operator is a value like any other, wherever it stands."""
    await ours.create_session(**ADA, session_id="s", state={"n": 5, "x": "$n"})

    for where in ({"n": "$n"}, {"x": "$x"}, {"$where": "true"}, {"$or": "n"}):
        assert await find(ours, **ADA, where=where) == []
    assert await find(ours, **ADA, where={"x": "$n"}) == ["s"]
    labels = {"$ne": "$gt"}
    await ours.create_session(**ADA, session_id="l", labels=labels, title="$title")
    assert await find(ours, **ADA, labels=labels) == ["l"]
    assert await find(ours, **ADA, title="$title") == ["l"]


@pytest.mark.parametrize(
    ("part", "found"),
    [
        ("turin", ["s1", "s0"]),
        ("TRIP TO", ["s1", "s0"]),
        (".*", ["s2"]),
        ("$title", ["s3"]),
        ("(*UTF)(a+)+$", ["s3"]),
        ("é\\Q", ["s4"]),
        ("É\\Q", []),
        ("trips", []),
        ("to \n", ["s1"]),
    ],
)
async def test_parts_of_titles_find_sessions(
    ours: MongoSessionService, part: str, found: list[str]
) -> None:
    """A part is a text like any other, and ASCII letters match in either case."""
    titles = ["A trip to Turin", "Trip to \nTURIN", "a.*b", "$title (*UTF)(a+)+$"]
    for number, title in enumerate(
        [*titles, "Caf\N{LATIN SMALL LETTER E WITH ACUTE}\\q"]
    ):
        await ours.create_session(**ADA, session_id=f"s{number}", title=title)
    await ours.create_session(**ADA, session_id="untitled")
    await ours.create_session(**APP, user_id="bob", session_id="b", title="To Turin")

    assert await find(ours, **ADA, title_contains=part, limit=1) == found
    both = {"title": titles[0], "title_contains": part}
    assert await find(ours, **ADA, **both) == [each for each in found if each == "s0"]


async def test_expired_sessions_are_not_found(ours: MongoSessionService) -> None:
    """A page never has what has expired, and its neighbours fill it up."""
    clock = Clock.set()
    for number in range(6):
        ttl = None if number % 2 else 10
        await ours.create_session(**ADA, session_id=f"s{number}", ttl=ttl)
        clock.now += 1
    clock.now += 10

    page = await ours.find_sessions(**ADA, limit=2)

    assert [each.id for each in page.sessions] == ["s5", "s3"]
    assert await find(ours, **ADA, limit=2) == ["s5", "s3", "s1"]


async def test_pages_stay_while_sessions_are_written(
    ours: MongoSessionService,
) -> None:
    """Appends, updates, new and deleted sessions shift nothing between pages."""
    rng = random.Random(7)  # noqa: S311  not for secrets
    clock = Clock.set()
    for number in range(30):
        await ours.create_session(**ADA, session_id=f"s{number:02}")
        clock.now += rng.choice([0, 1])
    doomed = {f"s{number:02}" for number in range(0, 30, 5)}
    found: list[str] = []
    token = None
    for number in range(100):
        page = await ours.find_sessions(**ADA, limit=3, page_token=token)
        found += [each.id for each in page.sessions]
        token = page.next_page_token
        if token is None:
            break
        session = await ours.get_session(**ADA, session_id=f"s{rng.randrange(30):02}")
        if session is not None:
            await ours.append_event(session, Event(author="x"))
            await ours.update_session(**ADA, session_id=session.id, title="T")
        await ours.create_session(**ADA, session_id=f"new{number}")
        clock.now += 1
        if doomed:
            await ours.delete_session(**ADA, session_id=doomed.pop())

    stayed = [f"s{number:02}" for number in range(30) if number % 5]
    assert len(set(found)) == len(found)
    assert [each for each in found if each in stayed] == stayed[::-1]


async def test_tokens_belong_to_their_search(ours: MongoSessionService) -> None:
    """A token that was altered, made up or got elsewhere is refused."""
    await fill(ours)
    search: dict[str, Any] = {**APP, "labels": {"team": "red"}, "where": {}}
    page = await ours.find_sessions(**search, limit=2)
    token = page.next_page_token
    assert token is not None
    following = await ours.find_sessions(**search, limit=9, page_token=token)
    assert len(following.sessions) == 4

    others: list[dict[str, Any]] = [
        {"app_name": "other"},
        {"user_id": "ada"},
        {"labels": None},
        {"labels": {"team": "blue"}},
        {"where": {"n": 1}},
        {"title": "T"},
        {"newest_first": False},
    ]
    for other in others:
        with pytest.raises(InvalidInputError, match="not returned by this search"):
            await ours.find_sessions(**{**search, **other}, page_token=token)
    altered = [
        token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        for place in range(0, len(token), 7)
    ] + [token[:-1], token + "A", token + "==", "", "ä", "A" * 100_000, token[24:]]
    for each in altered:
        with pytest.raises(InvalidInputError, match="not returned by this search"):
            await ours.find_sessions(**search, page_token=each)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"app_name": ""}, "app_name must not be empty"),
    ({"user_id": 1}, "user_id must be a string"),
    ({"limit": 0}, "limit must be a number from 1 to 1000"),
    ({"limit": 1001}, "limit must be a number from 1 to 1000"),
    ({"limit": True}, "limit must be a number from 1 to 1000"),
    ({"page_token": 5}, "page_token must be a string"),
    ({"title": {"$ne": ""}}, "title must be a string"),
    ({"labels": {"team": {"$ne": ""}}}, "label 'team' must be a string"),
    ({"where": [1]}, "where must be a dict"),
    ({"where": ""}, "where must be a dict"),
    ({"labels": 0}, "labels must be a dict"),
    ({"newest_first": "no"}, "newest_first must be True or False"),
    ({"order_by": "title"}, "order_by must be one of"),
    ({"waiting": False}, "waiting must be True or None"),
    ({"waiting": 1}, "waiting must be True or None"),
    ({"where": {1: 1}}, "keys of where must be strings"),
    ({"where": {"user:name": "Ada"}}, "their own state only"),
    ({"where": {"k": b"\xff"}}, "where key 'k' must be a string, .* not bytes"),
    ({"where": {"k": [1]}}, "where key 'k' must be a string, .* not list"),
    ({"where": {"k": {"a": 1}}}, "where key 'k' must be a string, .* not dict"),
    ({"where": {"k": 10**5000}}, "value of where key 'k' cannot be searched for"),
]


async def test_bad_searches_are_refused(ours: MongoSessionService) -> None:
    """What cannot be looked for is refused with the reason."""
    for search, reason in BAD:
        with pytest.raises(InvalidInputError, match=reason):
            await ours.find_sessions(**{**APP, **search})


async def test_adks_list_comes_in_pages_if_asked(ours: MongoSessionService) -> None:
    """Each session once, with its state, and current: it can be appended to."""
    await fill(ours)
    everything = await ours.list_sessions(**ADA)
    assert getattr(everything, "next_page_token", None) is None
    found, token = [], None
    while not found or token:
        page = await ours.list_sessions(**ADA, page_size=3, page_token=token)
        assert len(page.sessions) <= 3
        found += page.sessions
        token = page.next_page_token  # type: ignore[attr-defined]

    assert [each.id for each in found] == [f"s{number}" for number in range(7, -1, -1)]
    by_id = {each.id: each for each in everything.sessions}
    assert {each.id: each for each in found} == by_id
    markers = [each._storage_update_marker for each in found]  # noqa: SLF001
    assert markers == [by_id[each.id]._storage_update_marker for each in found]  # noqa: SLF001
    await ours.append_event(found[0], Event(author="x"))
    for wrong in ({"page_size": 0}, {"page_token": "x"}, {"page_size": "3"}):
        with pytest.raises(InvalidInputError, match="page_size"):
            await ours.list_sessions(**ADA, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="not returned by this search"):
        await ours.list_sessions(**APP, page_size=3, page_token=found[0].id)
