"""No call on one session, user or app reads or changes another, however alike."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, NamedTuple

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from pymongo import MongoClient
from support.attack_surface import Besieged, changed
from support.similar_ids import (
    FIRST,
    LABELS,
    TITLE,
    WHERE,
    Crowd,
    Owner,
    is_within,
    marks_in,
    named,
    seen,
    strangers,
)

from mongo_session_service import MongoSessionService, SessionPage

APP, USER, SESSION = 1, 2, 3
"""How much of a key a call takes."""


class Read(NamedTuple):
    """A call that is to show what belongs to its arguments."""

    method: str
    level: int
    more: dict[str, Any]

    async def on(self, crowd: Crowd, owner: Owner) -> set[str]:
        call = partial(getattr(crowd.service, self.method), **named(owner), **self.more)
        result = await seen(call())
        marks = marks_in(result)
        while isinstance(result, SessionPage) and result.next_page_token:
            result = await call(page_token=result.next_page_token)
            marks |= marks_in(result)
        return marks

    def expected(self, crowd: Crowd, owner: Owner) -> set[str]:
        """Whose values it is to show."""
        if self.method == "get_user_state":
            return {crowd.mark(owner)}
        return crowd.marks_of(owner)


READS = (
    Read("get_session", SESSION, {}),
    Read("get_session", SESSION, {"config": GetSessionConfig(num_recent_events=1)}),
    Read("get_session_at", SESSION, {"revision": 1}),
    Read("get_event", SESSION, {"event_id": FIRST}),
    Read("iter_events", SESSION, {}),
    Read("iter_events", SESSION, {"rewound": False}),
    Read("iter_events", SESSION, {"newest_first": True, "limit": 9}),
    Read("wait_for", SESSION, {"revision": 1}),
    Read("watch", SESSION, {}),
    Read("get_user_state", USER, {}),
    Read("iter_user_events", USER, {}),
    *(
        Read(method, level, more)
        for level in (USER, APP)
        for method, more in [
            ("list_sessions", {}),
            ("find_sessions", {"limit": 5}),
            ("find_sessions", {"where": WHERE, "newest_first": False}),
            ("find_sessions", {"labels": LABELS, "title": TITLE}),
        ]
    ),
)


class Write(NamedTuple):
    """A call on a session, and all that it is to change."""

    method: str
    arguments: Callable[[Crowd, Owner], Awaitable[dict[str, Any]]]
    changed: Callable[[Owner], set[tuple[str, Owner]]]
    error: type[Exception] | None = None


async def appending(crowd: Crowd, key: Owner, **delta: Any) -> dict[str, Any]:
    session = await crowd.service.get_session(**named(key))
    return {"session": session, "event": crowd.event(key, **delta)}


async def adding(crowd: Crowd, key: Owner) -> dict[str, Any]:
    return {**named(key), "event": crowd.event(key)}


async def forking(_: Crowd, key: Owner) -> dict[str, Any]:
    return {**named(key), "new_session_id": "fork"}


async def trimming(_: Crowd, key: Owner) -> dict[str, Any]:
    return {**named(fork_of(key)), "keep_last": 1}


async def redacting(_: Crowd, key: Owner) -> dict[str, Any]:
    return {**named(fork_of(key)), "event_ids": [FIRST]}


async def naming(_: Crowd, key: Owner) -> dict[str, Any]:
    return named(key)


async def labelling(crowd: Crowd, key: Owner) -> dict[str, Any]:
    return {**named(key), "labels": {**LABELS, "mark": crowd.mark(key)}}


async def creating(crowd: Crowd, key: Owner) -> dict[str, Any]:
    return {**named(key), "state": crowd.state(key), "labels": LABELS, "title": TITLE}


def the_log(key: Owner) -> set[tuple[str, Owner]]:
    return {("sessions", key), ("events", key)}


def shared_state(key: Owner) -> set[tuple[str, Owner]]:
    return {("user_states", key[:USER]), ("app_states", key[:APP])}


def fork_of(key: Owner) -> Owner:
    return (*key[:USER], "fork")


WRITES = (
    Write("append_event", appending, lambda key: the_log(key) | shared_state(key)),
    Write("append", adding, lambda key: the_log(key) | shared_state(key)),
    Write("append_event", partial(appending, own="x"), the_log),
    Write("turn", naming, lambda key: {("sessions", key)}),
    Write("stop_turn", naming, lambda _: set()),
    Write("update_session", labelling, lambda key: {("sessions", key)}),
    Write("fork_session", forking, lambda key: the_log(fork_of(key))),
    Write("redact_events", redacting, lambda key: the_log(fork_of(key))),
    Write("trim_session", trimming, lambda key: the_log(fork_of(key))),
    Write(
        "delete_session",
        lambda crowd, key: naming(crowd, fork_of(key)),
        lambda key: the_log(fork_of(key)),
    ),
    Write("create_session", creating, lambda _: set(), AlreadyExistsError),
    Write("delete_session", naming, the_log),
    Write(
        "create_session",
        creating,
        lambda key: {("sessions", key)} | shared_state(key),
    ),
    Write("append_event", appending, lambda key: the_log(key) | shared_state(key)),
)

ERASURES = {"delete_user": USER, "delete_app": APP}

NOT_HERE = {
    "setup": "names nobody",
    "close": "names nobody",
    "flush": "does nothing",
    "ping": "names nobody",
    "feed_stats": "tells counts, and the names of this service's consumers",
    "consumers": "tells of consumers, which belong to no app",
    "prune": "is about the whole database: test_isolated_databases.py",
    "consumer": "reads the feed: test_isolated_feed.py",
    "run_turn": "is a turn in which a runner calls others of these",
    "start_turn": "is such a turn",
    "find_branches": "test_branches.py, where two users have the same family",
    "show_branch": "also there",
    "find_turns": "tells of no content: test_start_turn.py",
    "recover_turns": "begins the turns that find_turns returns",
}


by_some = pytest.mark.parametrize(
    "step",
    [
        pytest.param(4, id="some"),  # in turn at each level that look-alikes come in
        pytest.param(1, id="all", marks=pytest.mark.release),
    ],
)
"""Amid everybody, each fourth makes its calls, and before a release all do."""


@pytest.fixture
async def crowd(service: MongoSessionService) -> Crowd:
    crowd = Crowd(service)
    await crowd.populate()
    return crowd


@pytest.fixture
def database_of(crowd: Crowd, admin: MongoClient) -> Besieged:
    return Besieged(crowd.service, admin)


def test_every_public_method_is_tried() -> None:
    """None is left out without a reason."""
    public = {
        name
        for name, _ in inspect.getmembers(MongoSessionService, inspect.isfunction)
        if not name.startswith("_")
    }
    tried = {each.method for each in (*READS, *WRITES)} | ERASURES.keys()

    assert public == tried | NOT_HERE.keys()
    assert not tried & NOT_HERE.keys()


async def test_reads_show_their_own(crowd: Crowd, database_of: Besieged) -> None:
    """Each shows all that belongs to its arguments and no more, and changes nothing."""
    before = database_of.stored()
    for read in READS:
        owners = [each for each in crowd.owners if len(each) == read.level]

        shown = await asyncio.gather(*(read.on(crowd, each) for each in owners))

        for owner, marks in zip(owners, shown, strict=True):
            assert marks == read.expected(crowd, owner), (read, owner)
    assert database_of.stored() == before


@pytest.mark.long
@by_some
async def test_writes_change_their_own(
    crowd: Crowd, database_of: Besieged, step: int
) -> None:
    """Each changes its own session and the state that this shares, to the byte."""
    before = database_of.stored()
    for key in crowd.keys[::step]:
        for write in WRITES:
            arguments = await write.arguments(crowd, key)

            result = await outcome(crowd.service, write, arguments)

            after = database_of.stored()
            changes = set(changed(before, after))
            assert changes == write.changed(key), (write.method, key)
            assert marks_in(result) <= crowd.marks_of(key)
            before = after


@by_some
@pytest.mark.parametrize("method", ERASURES)
async def test_erasures_remove_their_own(
    crowd: Crowd, database_of: Besieged, method: str, step: int
) -> None:
    """A user or an app goes with its sessions and state; no other loses a byte."""
    level = ERASURES[method]
    for owner in [each for each in crowd.owners if len(each) == level][::step]:
        before = database_of.stored()

        await getattr(crowd.service, method)(**named(owner))

        assert set(changed(before, database_of.stored())) == {
            *(change for key in crowd.sessions_of(owner) for change in the_log(key)),
            *(("user_states", each) for each in crowd.users if is_within(each, owner)),
            *({("app_states", owner)} if level == APP else ()),
        }
        await crowd.populate(owner)


@by_some
async def test_unknown_ids_find_no_similar_ones(
    crowd: Crowd, database_of: Besieged, step: int
) -> None:
    """Ids in another case, form or length find nothing, and delete nothing."""
    service, before = crowd.service, database_of.stored()
    keys = sorted(strangers())[::step]
    owners = {key[:level] for key in keys for level in (APP, USER)} - {*crowd.owners}

    async def missed(key: Owner) -> None:
        assert await service.get_session(**named(key)) is None
        await service.delete_session(**named(key))

    async def unknown(owner: Owner) -> None:
        assert (await service.list_sessions(**named(owner))).sessions == []
        method = "delete_app" if len(owner) == APP else "delete_user"
        await getattr(service, method)(**named(owner))

    await asyncio.gather(*map(missed, keys), *map(unknown, owners))

    assert len(keys) > len(crowd.keys)
    assert database_of.stored() == before


async def outcome(
    service: MongoSessionService, write: Write, arguments: dict[str, Any]
) -> object:
    """What a write returns, or the error that it is to raise."""
    call = getattr(service, write.method)(**arguments)
    if write.error is None:
        return await (entered(call) if hasattr(call, "__aenter__") else call)
    with pytest.raises(write.error) as raised:
        await call
    return raised.value


async def entered(turn: AbstractAsyncContextManager[Session]) -> Session:
    async with turn as session:
        return session
