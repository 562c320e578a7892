"""Versions of a message, on every driver, with hooks, and without transactions."""

from __future__ import annotations

from support.conversations import (
    OWNER,
    ROOT,
    ask,
    family,
    shown,
    talk,
    texts,
)

from mongo_session_service import MongoSessionService


async def test_edit_flip_and_delete(ours: MongoSessionService) -> None:
    """An edit is shown; so is what is flipped to, and the parent of what is deleted."""
    first, second = await talk(ours, "one", "two", title="Trip", state={"n": 1})
    edited, again = await ask(ours, "zwei", instead_of=second)
    third, _ = await ask(ours, None, session_id=edited, instead_of=again)

    assert await texts(ours, third) == ["one", "to one", "zwei", "to zwei"]
    assert await texts(ours) == ["one", "to one", "two", "to two"]
    assert await shown(ours) == [(third, 3)]
    await ours.show_branch(**OWNER, session_id=ROOT)
    assert await shown(ours) == [(ROOT, 3)]
    found = await family(ours, third)
    assert [each.parent_id for each in found] == [None, ROOT, edited]
    assert [each.version_of for each in found] == [None, ROOT, ROOT]
    assert [each.is_shown for each in found] == [True, False, False]
    (page,) = (await ours.find_sessions(**OWNER, families=True)).sessions
    root_id = page.root_id
    await ours.delete_session(**OWNER, session_id=ROOT)
    assert await shown(ours) == [(third, 2)]
    await ours.delete_session(**OWNER, session_id=third)
    assert await shown(ours) == [(edited, 1)]
    (summary,) = (await ours.find_sessions(**OWNER)).sessions
    assert (summary.title, summary.root_id) == ("Trip", root_id)
    assert (summary.state or {})["n"] == 1
    assert first != second
