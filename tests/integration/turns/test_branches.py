"""Versions of a message: branches, the family that shows one, and turns on them."""

from __future__ import annotations

import asyncio
import contextvars
import json
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.genai import types
from support.conversations import (
    OWNER,
    ROOT,
    EchoModel,
    ask,
    family,
    runner_of,
    shown,
    start,
    talk,
    texts,
)
from support.one_session import IDS
from support.spoken_model import SpokenModel
from support.subscriptions import Follower
from support.transfers import exported, imported

from mongo_session_service import (
    InvalidInputError,
    MongoSessionService,
    MongoSessionServiceError,
)


async def test_a_message_is_edited_on_a_branch(service: MongoSessionService) -> None:
    """The branch has what came before the message; the original stays as it is."""
    _, second = await talk(service, "one", "two", title="Trip", labels={"a": "b"})
    loaded = await service.get_session(**IDS)
    assert loaded is not None
    before = loaded.model_dump()

    branch, _ = await ask(service, "zwei", instead_of=second)

    assert await texts(service, branch) == ["one", "to one", "zwei", "to zwei"]
    original = await service.get_session(**IDS)
    assert original is not None
    assert original.model_dump() == before
    await service.append_event(loaded, Event(author="user"))  # which is not stale
    root, edited = await family(service)
    assert (root.session_id, root.parent_id, root.is_shown) == (
        *(ROOT, None),
        False,
    )
    assert (root.revision, root.before_invocation_id, root.version_of) == (
        0,
        None,
        None,
    )
    assert edited.model_dump(exclude={"create_time", "last_update_time"}) == {
        "session_id": branch,
        "parent_id": ROOT,
        "before_invocation_id": second,
        "revision": 2,
        "version_of": ROOT,
        "is_shown": True,
    }
    assert await shown(service) == [(branch, 2)]
    (summary,) = (await service.find_sessions(**OWNER, families=True)).sessions
    assert summary.root_id not in {None, ROOT, branch}
    assert summary.title == "Trip"
    assert summary.labels == {"a": "b"}
    both = await service.find_sessions(**OWNER)
    assert {(each.id, each.branches) for each in both.sessions} == {
        (ROOT, 2),
        (branch, 2),
    }


async def test_a_message_is_asked_again(service: MongoSessionService) -> None:
    """Without a new message it is the same one, with the session's state it had set."""
    await service.create_session(**IDS)
    delta = {"mood": "calm", "user:name": "Ada"}
    _, first = await ask(service, "one", state_delta=delta)
    session = await service.get_session(**IDS)
    assert session is not None
    actions = EventActions(state_delta={"mood": "tense", "user:name": "Eve"})
    await service.append_event(session, Event(author="agent", actions=actions))

    branch, _ = await ask(service, None, instead_of=first)

    assert await texts(service, branch) == ["one", "to one"]
    found = await service.get_session(**OWNER, session_id=branch)
    assert found is not None
    assert found.state == {"mood": "calm", "user:name": "Eve"}


async def test_branches_of_branches(service: MongoSessionService) -> None:
    """An edit of an edit is a third version; one of what both share, of the root's."""
    first, second, _ = await talk(service, "one", "two", "three")
    root = ROOT
    edited, again = await ask(service, "zwei", instead_of=second)
    third, _ = await ask(service, "deux", session_id=edited, instead_of=again)
    other, _ = await ask(service, "eins", session_id=third, instead_of=first)
    later = (await ask(service, "four", session_id=other))[1]
    deep, _ = await ask(service, "vier", session_id=other, instead_of=later)

    found = {each.session_id: each for each in await family(service, third)}

    assert [*found] == [root, edited, third, other, deep]
    assert {name: (it.parent_id, it.version_of) for name, it in found.items()} == {
        root: (None, None),
        edited: (root, root),
        third: (edited, root),
        other: (third, root),
        deep: (other, other),
    }
    assert [each.revision for each in found.values()] == [0, 2, 2, 0, 2]
    assert [name for name, each in found.items() if each.is_shown] == [deep]
    assert await texts(service, deep) == ["eins", "to eins", "vier", "to vier"]


async def test_versions_between_which_one_was_deleted(
    service: MongoSessionService,
) -> None:
    """Those that were made of it are versions of what it was a version of."""
    (first,) = await talk(service, "one")
    between, _ = await ask(service, "eins", instead_of=first)
    later = (await ask(service, "two", session_id=between))[1]
    deep, _ = await ask(service, "zwei", session_id=between, instead_of=later)
    beside, _ = await ask(service, "uno", instead_of=first)

    async def places() -> list[tuple[str, str | None, int]]:
        found = await family(service, deep)
        return [(each.session_id, each.version_of, each.revision) for each in found]

    assert (await places())[1:] == [
        *((between, ROOT, 0), (deep, between, 2), (beside, ROOT, 0)),
    ]
    await service.delete_session(**OWNER, session_id=between)
    assert (await places())[1:] == [(deep, ROOT, 0), (beside, ROOT, 0)]
    await service.delete_session(**IDS)
    assert await places() == [(deep, ROOT, 0), (beside, ROOT, 0)]


async def test_another_version_is_shown(service: MongoSessionService) -> None:
    """A flip takes the title along, and subscribers learn which session is shown."""
    (first,) = await talk(service, "one")
    branch, _ = await ask(service, "eins", instead_of=first)
    await service.update_session(**OWNER, session_id=branch, title="Renamed")
    follower = Follower(service.watch(*OWNER.values()))

    async with follower:
        await service.show_branch(**IDS)
        await service.show_branch(**IDS)  # nothing more
        new, _ = await ask(service, "uno", instead_of=first)
        await follower.until(lambda: len(follower.told) >= 6)

    assert await shown(service) == [(new, 3)]
    seen = [
        (each.kind, each.session_id, each.root_id, each.is_shown)
        for each in follower.told
        if each.kind != "appended"
    ]
    (summary,) = (await service.find_sessions(**OWNER, families=True)).sessions
    of = summary.root_id
    assert seen == [
        ("updated", ROOT, of, True),
        ("updated", branch, of, False),
        ("created", new, of, True),
        ("updated", ROOT, of, False),
    ]
    assert follower.told[0].title == "Renamed"
    assert summary.title == "Renamed"


async def test_a_session_of_its_own(service: MongoSessionService) -> None:
    """It is its only version, and to show it changes nothing."""
    await service.create_session(**IDS)
    forked = await service.fork_session(**IDS)
    await service.show_branch(**IDS)

    (alone,) = await family(service)

    assert (alone.session_id, alone.is_shown) == (ROOT, True)
    assert (alone.parent_id, alone.revision) == (None, 0)
    assert {*await shown(service)} == {(ROOT, 1), (forked.id, 1)}


async def test_a_fork_of_a_branch_is_a_session_of_its_own(
    service: MongoSessionService,
) -> None:
    """``fork_session`` stays what it is."""
    (first,) = await talk(service, "one")
    branch, _ = await ask(service, "eins", instead_of=first)
    forked = await service.fork_session(**OWNER, session_id=branch)

    (alone,) = await family(service, forked.id)

    assert alone.is_shown
    assert {*await shown(service)} == {(branch, 2), (forked.id, 1)}


async def test_a_running_turn_is_stopped_first(service: MongoSessionService) -> None:
    """With ``interrupt`` it ends in the original; without, it goes on there."""
    (first,) = await talk(service, "one")
    model = SpokenModel()
    model.say("well")
    running = await start(service, model, "two")
    async for event in running:
        second = event.invocation_id
        break

    beside, _ = await ask(service, "zwei", instead_of=first)
    assert not running.is_done
    branch, _ = await ask(service, "deux", instead_of=second, interrupt=True)

    await running.wait_end()
    assert running.turn.info.status == "stopped"
    assert await texts(service, beside) == ["zwei", "to zwei"]
    assert await texts(service, branch) == ["one", "to one", "deux", "to deux"]


async def test_an_agent_that_fails_at_once(service: MongoSessionService) -> None:
    """The branch stays, and its turn has failed."""
    failing = runner_of(service, EchoModel(failure=ZeroDivisionError()))
    (first,) = await talk(service, "one")
    with pytest.raises(ZeroDivisionError):
        await ask(service, "eins", instead_of=first, runner=failing)

    (only,) = [each.session_id for each in await family(service) if each.is_shown]
    assert (await texts(service, only))[0] == "eins"
    (turn,) = await service.find_turns(app_name=IDS["app_name"], status="failed")
    assert turn.session_id == only


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"instead_of": "nothing"}, "no event of invocation 'nothing'"),
        ({"instead_of": 7}, "instead_of"),
        ({"new_message": types.Content(parts=[])}, "no parts"),
        ({"invocation_id": "x"}, "not both"),
    ],
)
async def test_what_cannot_be_edited(
    service: MongoSessionService, how: dict[str, Any], message: str
) -> None:
    """Bad input is refused, and makes no branch."""
    (first,) = await talk(service, "one")
    runner = runner_of(service, EchoModel())

    with pytest.raises(InvalidInputError, match=message):
        await service.start_turn(
            runner,
            user_id=IDS["user_id"],
            session_id=ROOT,
            **{"instead_of": first} | how,  # type: ignore[arg-type]
        )

    assert [each.session_id for each in await family(service)] == [ROOT]
    gone = {"user_id": IDS["user_id"], "session_id": "gone"}
    with pytest.raises(SessionNotFoundError):
        await service.start_turn(runner, **gone, instead_of=first)
    with pytest.raises(SessionNotFoundError):
        await service.find_branches(**OWNER, session_id="gone")
    with pytest.raises(SessionNotFoundError):
        await service.show_branch(**OWNER, session_id="gone")


async def test_what_was_trimmed(service: MongoSessionService) -> None:
    """An invocation whose begin is gone is refused; a whole one has its branch."""
    first, second = await talk(service, "one", "two")
    await service.trim_session(**IDS, before_revision=2)
    with pytest.raises(InvalidInputError, match="its beginning was trimmed"):
        await ask(service, "eins", instead_of=first)
    branch, _ = await ask(service, "zwei", instead_of=second)
    assert await texts(service, branch) == ["to one", "zwei", "to zwei"]
    await service.trim_session(**IDS, before_revision=3)
    with pytest.raises(InvalidInputError, match="or it was trimmed"):
        await ask(service, "eins", instead_of=first)


async def test_what_has_no_message(service: MongoSessionService) -> None:
    """One that an agent or an answer began, or that was redacted, needs a message."""
    session = await service.create_session(**IDS)
    await service.append_event(session, Event(author="agent", invocation_id="job"))
    with pytest.raises(InvalidInputError, match="began with no message"):
        await ask(service, None, instead_of="job")
    given = types.Part.from_function_response(name="ship", response={"confirmed": True})
    answer = Event(author="user", invocation_id="answered")
    answer.content = types.UserContent([types.Part(text="Yes"), given])
    await service.append_event(session, answer)
    with pytest.raises(InvalidInputError, match="began with no message"):
        await ask(service, None, instead_of="answered")
    branch, first = await ask(service, "one", instead_of="job")
    await service.redact_events(
        **OWNER, session_id=branch, invocation_id=first, state=True
    )
    with pytest.raises(InvalidInputError, match="redacted"):
        await ask(service, None, session_id=branch, instead_of=first)


async def test_redaction_reaches_from_before_the_family_into_it(
    service: MongoSessionService,
) -> None:
    """A branch of a fork is redacted with what that was made of, and not otherwise."""
    first, second = await talk(service, "secret", "two")
    await service.fork_session(**IDS, new_session_id="z")
    z = {**OWNER, "session_id": "z"}
    await service.fork_session(**z, new_session_id="root")
    one, again = await ask(service, "zwei", session_id="root", instead_of=second)
    two, _ = await ask(service, "dos", session_id=one, instead_of=again)
    assert [it.version_of for it in await family(service, two)] == [None] + ["root"] * 2

    done = await service.redact_events(
        **OWNER, session_id=two, invocation_id=first, forks=True
    )
    assert done == 6
    assert (await texts(service, "z"))[0] == (await texts(service))[0] == "secret"
    assert await service.redact_events(**z, invocation_id=first, forks=True) == 2
    await service.redact_events(**IDS, invocation_id=first, forks=True)
    for each in (ROOT, "z", "root", one, two):
        assert (await texts(service, each))[:2] == ["[redacted]"] * 2


async def test_a_refused_edit_stops_no_turn(service: MongoSessionService) -> None:
    """What the original's turn came to stays as it was, also if none was running."""
    (first,) = await talk(service, "one")
    failing = runner_of(service, EchoModel(failure=ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        await ask(service, "two", runner=failing)
    for how in ({"instead_of": "nothing"}, {"new_message": types.Content(parts=[])}):
        with pytest.raises(InvalidInputError):
            await ask(service, None, **{"instead_of": first, **how}, interrupt=True)

    await ask(service, "eins", instead_of=first, interrupt=True)

    (turn,) = await service.find_turns(app_name=IDS["app_name"], status="failed")
    assert (turn.session_id, turn.epoch) == (ROOT, 2)


async def test_a_plain_turn_is_not_stopped(service: MongoSessionService) -> None:
    """An edit with ``interrupt`` waits for its end, and is refused if it is late."""
    (first,) = await talk(service, "one")
    async with service.turn(**IDS):
        with pytest.raises(MongoSessionServiceError, match="is held here already"):
            await ask(service, "eins", instead_of=first, interrupt=True)
        elsewhere = contextvars.Context()
        late = asyncio.create_task(
            ask(service, "eins", instead_of=first, interrupt=True, wait=0.05),
            context=elsewhere,
        )
        with pytest.raises(TimeoutError, match="did not end within"):
            await late

    assert len(await family(service)) == 1


async def test_families_of_two_users_are_apart(
    service: MongoSessionService, tmp_path: Path
) -> None:
    """Even if they have the same ids, as after an import for another user."""
    (first,) = await talk(service, "one")
    branch, _ = await ask(service, "eins", instead_of=first)
    text = (await exported(service, tmp_path / "all.jsonl")).decode()
    other = text.replace(json.dumps(IDS["user_id"]), '"other"')
    (tmp_path / "other.jsonl").write_text(other)
    await imported(tmp_path / "other.jsonl", service)

    await service.show_branch(**IDS)

    assert await shown(service) == [(ROOT, 2)]
    others = {**OWNER, "user_id": "other"}
    page = await service.find_sessions(**others, families=True)
    assert [(each.id, each.branches) for each in page.sessions] == [(branch, 2)]
    await service.delete_user(**others)
    assert await shown(service) == [(ROOT, 2)]
