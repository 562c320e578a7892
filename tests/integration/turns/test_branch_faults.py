"""Faults while a message is edited: its family shows one whole version all the same."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.plugins import BasePlugin
from google.adk.sessions import Session
from pymongo import MongoClient
from support.conversations import (
    OWNER,
    ROOT,
    EchoModel,
    ask,
    family,
    runner_of,
    shown,
    talk,
    texts,
)
from support.failpoints import failing
from support.long_sessions import left_in
from support.one_session import IDS, read
from support.scripted_model import said

from mongo_session_service import (
    MongoSessionService,
    MongoSessionServiceError,
    UnknownOutcomeError,
)
from mongo_session_service.sessions import fork
from mongo_session_service.turns.turn import Turn

COMMANDS = (
    *("find", "aggregate", "insert", "update", "delete", "findAndModify"),
    "commitTransaction",
)
PAST = {"$set": {"expire_time": 1.0}}


async def names_of(service: MongoSessionService) -> list[str]:
    return [each.session_id for each in await family(service)]


@pytest.mark.parametrize("how", ["deleted", "expired", "erased"])
async def test_a_branch_is_gone_before_its_message(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """Whoever edits learns that it is not there; nothing was shown in between."""
    (first,) = await talk(service, "one", title="Trip")
    turn = Turn.__aenter__

    async def overtaken(held: Turn) -> Session:
        entered = await turn(held)
        if how == "deleted":
            await service.delete_session(**held.key.id)
        elif how == "erased":
            await service.delete_user(**OWNER)
        else:
            admin[database].sessions.update_one({"_id": held.key.id}, PAST)
            await service.prune()
        return entered

    with monkeypatch.context() as patch:
        patch.setattr(Turn, "__aenter__", overtaken)
        with pytest.raises(SessionNotFoundError):
            await ask(service, "eins", instead_of=first)

    left = 0 if how == "erased" else 1
    assert await shown(service) == [(ROOT, 1)] * left
    assert left_in(admin, database) == {"sessions": left, "events": 2 * left}


@pytest.mark.parametrize("how", ["deleted", "redacted", "trimmed"])
async def test_the_original_is_changed_before_the_message(
    service: MongoSessionService, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """What was copied of it is stored nowhere."""
    first, second = await talk(service, "one", "two")
    turn = Turn.__aenter__

    async def overtaken(held: Turn) -> Session:
        entered = await turn(held)
        if how == "deleted":
            await service.delete_session(**IDS)
        elif how == "redacted":
            await service.redact_events(**IDS, invocation_id=first, forks=True)
        else:
            await service.trim_session(**IDS, before_revision=3)
        return entered

    monkeypatch.setattr(Turn, "__aenter__", overtaken)
    with pytest.raises(SessionNotFoundError):
        await ask(service, "zwei", instead_of=second)

    assert await shown(service) == [(ROOT, 1)] * (how != "deleted")


async def test_nobody_sees_a_branch_before_its_message(
    service: MongoSessionService,
    second: MongoSessionService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor can anybody else write to it, or take its turn."""
    (first,) = await talk(service, "one", title="Trip")
    turn = Turn.__aenter__
    seen: list[object] = []

    async def looked_at(held: Turn) -> Session:
        entered = await turn(held)
        key = held.key.id
        seen.append(await second.get_session(**key))
        seen.append(await shown(second))
        seen.append(len(await family(second)))
        for call in (
            second.append(**key, event=Event(author="user")),
            second.find_branches(**key),
            second.show_branch(**key),
            second.update_session(**key, title="x"),
            second.fork_session(**key),
        ):
            with pytest.raises(SessionNotFoundError):
                await call
        with pytest.raises(SessionNotFoundError):
            async with second.turn(**key):
                pass
        return entered

    with monkeypatch.context() as patch:
        patch.setattr(Turn, "__aenter__", looked_at)
        branch, _ = await ask(service, "eins", instead_of=first)

    assert seen == [None, [(ROOT, 1)], 1]
    assert await shown(second) == [(branch, 2)]
    assert await texts(second, branch) == ["eins", "to eins"]


async def test_an_agent_that_fails_before_the_message(
    service: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """There is no branch; whoever edits learns why."""
    (first,) = await talk(service, "one")

    class Unready(BasePlugin):
        async def on_user_message_callback(self, **_: Any) -> None:
            raise ZeroDivisionError

    runner = runner_of(service, EchoModel())
    runner.plugin_manager.register_plugin(Unready(name="unready"))
    with pytest.raises(RuntimeError, match="unready"):
        await ask(service, "eins", instead_of=first, runner=runner)

    assert await shown(service) == [(ROOT, 1)]
    assert left_in(admin, database) == {"sessions": 1, "events": 2}


async def test_mongodb_is_away_from_some_command_on(
    victim: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """There is no branch, or a whole one, whichever command is the first that fails."""
    _, second = await talk(victim, "one", "two", title="Trip")
    runner = runner_of(victim, EchoModel())
    outcomes = set[bool]()
    before = await texts(victim)
    for skip in count():
        known = await names_of(victim)
        has_ended = False
        with failing(admin, *COMMANDS, skip=skip, errorCode=2):
            try:
                await ask(victim, "zwei", instead_of=second, runner=runner)
                has_ended = True
            except MongoSessionServiceError:
                pass
        found = await family(victim)
        new = {each.session_id for each in found} - {*known}
        outcomes.add(bool(new))
        assert len(new) <= 1
        (one,) = [each.session_id for each in found if each.is_shown]
        assert await shown(victim) == [(one, len(found))]
        for each in new:
            assert (await texts(victim, each))[:2] == before[:2]
            assert one == each
        if has_ended:
            break
    assert outcomes == {True, False}
    assert await texts(victim) == before

    later = {"$inc": {"expire_time": -fork.FORK_LIFETIME}}
    admin[database].sessions.update_many({"held_by": {"$exists": True}}, later)
    await victim.prune()
    ids = await names_of(victim)
    assert {*admin[database].events.distinct("_id.session_id")} == {*ids}
    assert left_in(admin, database)["sessions"] == len(ids)


async def test_nobody_knows_whether_a_branch_is_stored(
    victim: MongoSessionService, admin: MongoClient[Any]
) -> None:
    """If it is, it stays with its message; whoever edits may do so again."""
    (first,) = await talk(victim, "one")
    unsatisfiable = {"code": 100, "errmsg": "not enough members"}
    with (
        failing(admin, "commitTransaction", writeConcernError=unsatisfiable),
        pytest.raises(UnknownOutcomeError),
    ):
        await ask(victim, "eins", instead_of=first)

    again, _ = await ask(victim, "eins", instead_of=first)
    names = await names_of(victim)
    assert names[-1] == again
    assert await shown(victim) == [(again, len(names))]


async def test_two_services_edit_and_flip_at_once(
    service: MongoSessionService, second: MongoSessionService
) -> None:
    """Whatever comes last is shown, alone."""
    (first,) = await talk(service, "one")
    both = (service, second)
    edits = [ask(each, f"{n}", instead_of=first) for n in range(4) for each in both]
    flips = [each.show_branch(**IDS) for _ in range(4) for each in both]

    made = await asyncio.gather(*edits, *flips)

    found = await family(second)
    assert len(found) == 9
    assert {each[0] for each in made[:8] if each} < {it.session_id for it in found}
    (only,) = [each.session_id for each in found if each.is_shown]
    assert await shown(service) == [(only, 9)]


async def test_whoever_rebases_goes_on_in_the_original(
    second: MongoSessionService,
) -> None:
    """What is appended to it, by whoever has loaded it before, is in no branch."""
    first, again = await talk(second, "one", "two")
    loaded = [await read(second) for _ in range(2)]

    branch, _ = await ask(second, "zwei", instead_of=again)
    for number, each in enumerate(loaded):
        event = Event(author="x", content=said(f"late {number}"))
        await second.append_event(each, event)

    assert (await texts(second))[-2:] == ["late 0", "late 1"]
    assert await texts(second, branch) == ["one", "to one", "zwei", "to zwei"]
    other, _ = await ask(second, "eins", instead_of=first)
    assert await texts(second, other) == ["eins", "to eins"]


async def test_the_shown_version_has_expired(
    victim: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """Its parent counts as shown; once the expired one is removed, lists have it."""
    (first,) = await talk(victim, "one", title="Trip")
    other, _ = await ask(victim, "uno", instead_of=first)
    branch, _ = await ask(victim, "eins", instead_of=first)
    admin[database].sessions.update_one({"_id.session_id": branch}, PAST)

    assert [each.is_shown for each in await family(victim)] == [True, False]
    with pytest.raises(SessionNotFoundError):
        await victim.show_branch(**OWNER, session_id=branch)
    await victim.prune()

    (summary,) = (await victim.find_sessions(**OWNER, families=True)).sessions
    assert (summary.id, summary.title, summary.branches) == (ROOT, "Trip", 2)
    assert await names_of(victim) == [ROOT, other]


async def test_all_versions_but_one_have_expired(
    victim: MongoSessionService, database: str, admin: MongoClient[Any]
) -> None:
    """What is left is shown, alone."""
    (first,) = await talk(victim, "one")
    left, _ = await ask(victim, "uno", instead_of=first)
    await ask(victim, "eins", instead_of=first)
    others = {"_id.session_id": {"$ne": left}}
    admin[database].sessions.update_many(others, PAST)

    for _ in range(2):
        (alone,) = await family(victim, left)
        assert alone.is_shown
        await victim.prune()
    assert await shown(victim) == [(left, 1)]


@pytest.mark.parametrize(
    ("field", "place"),
    [
        *(("branch", 5), ("branch", None), ("branch", {}), ("branch", {"family": 7})),
        *(("branch", {"family": "f", "root": None}), ("branch", {"root": ROOT})),
    ],
    ids=repr,
)
async def test_a_place_in_a_family_that_is_none(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    field: str,
    place: object,
) -> None:
    """What another tool has stored there makes a session one of its own."""
    (first,) = await talk(service, "one")
    of_it = {"_id.session_id": ROOT}
    admin[database].sessions.update_one(of_it, {"$set": {field: place}})

    assert await shown(service) == [(ROOT, 1)]
    assert (await service.update_session(**IDS, title="x")).branches == 1
    assert await names_of(service) == [ROOT]
    await service.show_branch(**IDS)
    await service.redact_events(**IDS, invocation_id=first, forks=True)
    branch, _ = await ask(service, "eins", instead_of=first)
    assert await shown(service) == [(branch, 2)]
    await service.delete_session(**IDS)
    assert await shown(service) == [(branch, 1)]
