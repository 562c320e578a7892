"""Titles and the display names of ADK's web interface, which are one thing."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from google.adk.agents import BaseAgent
from google.adk.events import Event, EventActions
from google.adk.runners import Runner

from mongo_session_service import MongoSessionService

OF_USER = {"app_name": "app", "user_id": "ada"}
SESSION = {**OF_USER, "session_id": "s"}
KEY = "__session_metadata__"


def named(name: object, **others: object) -> dict[str, Any]:
    """A state whose display name this is."""
    return {KEY: {**others, "displayName": name}}


async def rename(service: MongoSessionService, delta: dict[str, Any]) -> None:
    """Append what ADK's web interface appends."""
    session = await service.get_session(**SESSION)
    assert session is not None
    actions = EventActions(state_delta=delta)
    ordinal = len(session.events) + 1
    event = Event(author="user", invocation_id=f"i{ordinal}", actions=actions)
    await service.append_event(session, event)


async def titles(service: MongoSessionService) -> tuple[Any, Any, Any, Any]:
    """A session's title as it is found, loaded, listed, and found by itself."""
    session = await service.get_session(**SESSION)
    assert session is not None
    name = (session.state.get(KEY) or {}).get("displayName")
    (listed,) = (await service.list_sessions(**OF_USER)).sessions
    assert listed.state == session.state
    (summary,) = (await service.find_sessions(**OF_USER)).sessions
    assert summary.state == session.state
    by_title = await service.find_sessions(**OF_USER, title=name or "none")
    return summary.title, name, len(by_title.sessions), session.state


@pytest.mark.parametrize(
    "given",
    [{"title": "T"}, {"state": named("T")}, {"title": "T", "state": named("U")}],
)
async def test_a_new_session_has_one_title(
    ours: MongoSessionService, given: dict[str, Any]
) -> None:
    """A title is a display name, and the other way round; of two the title counts."""
    created = await ours.create_session(**SESSION, **given)

    assert created.state == named("T")
    assert await titles(ours) == ("T", "T", 1, named("T"))


async def test_each_side_renames(ours: MongoSessionService) -> None:
    """What was set last is the title and the display name; other metadata stays."""
    await ours.create_session(**SESSION, title="A", state={KEY: {"x": 1}})
    assert await titles(ours) == ("A", "A", 1, named("A", x=1))

    await rename(ours, named("B", x=2))
    assert await titles(ours) == ("B", "B", 1, named("B", x=2))

    await ours.update_session(**SESSION, title="C")
    assert await titles(ours) == ("C", "C", 1, named("C", x=2))

    await ours.update_session(**SESSION, title=None)
    assert await titles(ours) == (None, None, 0, {KEY: {"x": 2}})

    await rename(ours, named("D"))
    assert await titles(ours) == ("D", "D", 1, named("D"))


@pytest.mark.parametrize(
    "value",
    [{}, None, "text", *({"displayName": it} for it in ("", 1, "x" * 1001, "\ud800"))],
)
async def test_a_display_name_that_is_no_title_is_stored_as_state(
    ours: MongoSessionService, value: object
) -> None:
    """It ends the title that the session had."""
    await ours.create_session(**SESSION, title="A")

    await rename(ours, {KEY: value, "k": 1})

    session = await ours.get_session(**SESSION)
    assert session is not None
    assert session.state == {KEY: value, "k": 1}
    (summary,) = (await ours.find_sessions(**OF_USER)).sessions
    assert summary.title is None


async def test_another_use_of_the_key_is_left_alone(ours: MongoSessionService) -> None:
    """A title hides no state of an application that uses the key for something else."""
    created = await ours.create_session(**SESSION, title="A", state={KEY: [1]})

    assert created.state == {KEY: [1]}
    assert (await titles_found(ours)) == ["A"]


async def titles_found(service: MongoSessionService) -> list[str | None]:
    page = await service.find_sessions(**OF_USER)
    return [each.title for each in page.sessions]


async def test_deltas_of_few_and_of_many_keys(ours: MongoSessionService) -> None:
    """Without a name they keep the title; a rename, or its end, counts among them."""
    many = {f"k{number}": 1 for number in range(600)}
    await ours.create_session(**SESSION, title="A")

    for delta, title in (
        ({"k": 1}, "A"),
        (many, "A"),
        ({**many, **named("B")}, "B"),
        ({**many, KEY: None}, None),
    ):
        await rename(ours, delta)
        assert (await titles(ours))[:3] == (title, title, 1 if title else 0)


async def test_a_rewind_undoes_renames_of_the_log(ours: MongoSessionService) -> None:
    """A rewind takes back renames that were appended, and no others."""
    await ours.create_session(**SESSION, title="A", state={"k": 0})
    await rename(ours, {"k": 1})
    await ours.update_session(**SESSION, title="B")
    runner = Runner(app_name="app", agent=BaseAgent(name="a"), session_service=ours)
    rewind = partial(runner.rewind_async, user_id="ada", session_id="s")

    await rewind(rewind_before_invocation_id="i1")
    assert (await titles(ours)) == ("B", "B", 1, {"k": 0, **named("B")})

    await rename(ours, named("C"))
    await rename(ours, named("D"))
    await ours.update_session(**SESSION, title="E")
    await rewind(rewind_before_invocation_id="i4")
    assert (await titles(ours))[:3] == ("C", "C", 1)
    await rewind(rewind_before_invocation_id="i3")
    assert (await titles(ours))[:3] == (None, None, 0)


async def test_a_rename_without_an_event_is_in_no_log(
    ours: MongoSessionService,
) -> None:
    """No earlier state, and no fork of one, has it."""
    await ours.create_session(**SESSION, state=named("A"))
    await rename(ours, named("B"))
    await ours.update_session(**SESSION, title="C")

    past = [
        each.state
        for revision in (0, 1)
        if (each := await ours.get_session_at(**SESSION, revision=revision))
    ]
    forks = [
        await ours.fork_session(**SESSION, at_revision=revision) for revision in (0, 1)
    ]

    assert past == [named("A"), named("B")]
    assert [each.state for each in forks] == [named("A"), named("C")]
    log = [event.actions.state_delta async for _, event in ours.iter_events(**SESSION)]
    assert log == [named("B")]
