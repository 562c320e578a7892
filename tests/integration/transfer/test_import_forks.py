"""Forks that were exported and imported know what they were made of."""

from __future__ import annotations

from pathlib import Path

from support.consumers import append
from support.conversations import OWNER, ROOT, ask, family, shown, talk
from support.transfers import IDS, exported, imported

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer.sources import Selection


async def test_a_redaction_reaches_imported_forks(
    service: MongoSessionService, copy: MongoSessionService, tmp_path: Path
) -> None:
    """The copy of a database has its forks by the same origins."""
    session = await service.create_session(**IDS)
    await append(service, session, 2)
    await service.fork_session(**IDS, new_session_id="t")
    await exported(service, tmp_path / "all.jsonl")
    event_ids = [session.events[0].id]

    assert (await imported(tmp_path / "all.jsonl", copy)).new == 2
    done = await copy.redact_events(**IDS, event_ids=event_ids, forks=True)
    assert done == 2


async def test_a_family_keeps_its_shape(
    service: MongoSessionService, copy: MongoSessionService, tmp_path: Path
) -> None:
    """The versions of a conversation are imported as they are, as is a later one."""
    (first,) = await talk(service, "one")
    edited, again = await ask(service, "eins", instead_of=first)
    for text in ("uno", "un"):
        await exported(service, tmp_path / "all.jsonl")
        await imported(tmp_path / "all.jsonl", copy)
        assert await family(copy) == await family(service)
        assert await shown(copy) == await shown(service)
        await ask(service, text, session_id=edited, instead_of=again)


async def test_one_version_alone_is_a_session_of_its_own(
    service: MongoSessionService, copy: MongoSessionService, tmp_path: Path
) -> None:
    """Without its family nothing would show it; where that is, it keeps its place."""
    (first,) = await talk(service, "one")
    edited, _ = await ask(service, "eins", instead_of=first)
    one = Selection(sessions=frozenset({ROOT}))
    await exported(service, tmp_path / "one.jsonl", one)

    await imported(tmp_path / "one.jsonl", copy)
    assert await shown(copy) == [(ROOT, 1)]
    await imported(tmp_path / "one.jsonl", service)
    assert await shown(service) == [(edited, 2)]


async def test_a_family_goes_on_in_its_copy(
    service: MongoSessionService, copy: MongoSessionService, tmp_path: Path
) -> None:
    """Whatever was edited, shown or appended on either side, one is shown."""
    (first,) = await talk(service, "one", title="Trip")
    await ask(service, "eins", instead_of=first)

    async def catch_up() -> list[tuple[str, int]]:
        await exported(service, tmp_path / "all.jsonl")
        await imported(tmp_path / "all.jsonl", copy)
        return await shown(copy)

    await catch_up()
    there, _ = await ask(copy, "uno", instead_of=first)  # which is shown there
    assert await catch_up() == [(there, 3)]
    await ask(copy, "two", session_id=there)
    await service.show_branch(**OWNER, session_id=ROOT)
    assert await catch_up() == [(there, 3)]
    latest, _ = await ask(service, "un", instead_of=first)
    assert await catch_up() == [(latest, 4)]
