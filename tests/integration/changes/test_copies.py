"""Changes of what a fork or an import has stored say so."""

from __future__ import annotations

import json
from pathlib import Path

from google.adk.events import Event
from support.consumers import APP, USER
from support.subscriptions import Follower
from support.transfers import exported, imported

from mongo_session_service import Change, MongoSessionService

KEY = {"app_name": APP, "user_id": USER, "session_id": "s"}

Copied = set[tuple[str, str | None, int | None, str | None]]

OF_FAMILY: Copied = {
    ("created", "s", 0, None),
    ("created", "t", 2, "fork"),
    ("created", "u", 3, "fork"),
    ("created", "v", 1, "fork"),
    *(("appended", "s", n, None) for n in (1, 2)),
    *(("appended", "t", n, "fork") for n in (1, 2)),
    ("appended", "t", 3, None),
    *(("appended", "u", n, "fork") for n in (1, 2, 3)),
    ("appended", "v", 1, "fork"),
    ("appended", "v", 2, None),
}


async def append(
    service: MongoSessionService, *authors: str, session_id: str = "s"
) -> None:
    """Append an event of each author to a session, which is created if need be."""
    key = KEY | {"session_id": session_id}
    session = await service.get_session(**key) or await service.create_session(**key)
    for author in authors:
        await service.append_event(session, Event(author=author))


async def store_family(service: MongoSessionService) -> None:
    """A session, a fork of it, a fork of that, and one of that at its beginning."""
    await append(service, "user", "agent")
    await service.fork_session(**KEY, new_session_id="t")
    await append(service, "agent", session_id="t")
    await service.fork_session(**KEY | {"session_id": "t"}, new_session_id="u")
    await service.fork_session(
        **KEY | {"session_id": "u"}, new_session_id="v", at_revision=1
    )
    await append(service, "agent", session_id="v")


async def received(service: MongoSessionService, name: str) -> list[Change]:
    changes: list[Change] = []
    await service.consumer(name).run(changes.append, until_caught_up=True)
    return changes


def copied(changes: list[Change]) -> Copied:
    """Who has stored what, as these say, also in JSON and by their property."""
    for each in changes:
        assert json.loads(each.json_text).get("copied_by") == each.copied_by
        assert each.is_copy == (each.copied_by is not None)
    return {(it.kind, it.session_id, it.revision, it.copied_by) for it in changes}


async def test_a_copied_event_is_marked_wherever_it_is_read(
    service: MongoSessionService,
) -> None:
    """In a change stream, in a replay of the log, in a subscription, when redacted."""
    async with service.consumer("live", start="now"):
        pass
    async with Follower(service.watch(APP)) as follower:
        await store_family(service)
        await follower.until(lambda: len(follower.told) == len(OF_FAMILY))
        assert copied(follower.told) == OF_FAMILY
        [first, *_] = [it async for it in service.iter_events(**KEY)]
        await service.redact_events(**KEY, event_ids=[first[1].id], forks=True)
        await follower.until(lambda: len(follower.told) == len(OF_FAMILY) + 4)
    redacted = {(it.session_id, it.copied_by) for it in follower.told[-4:]}
    assert redacted == {("s", None), ("t", "fork"), ("u", "fork"), ("v", "fork")}
    live = [it for it in await received(service, "live") if it.kind != "redacted"]
    assert copied(live) == OF_FAMILY
    of_log = {each for each in OF_FAMILY if each[0] == "appended"}
    assert copied(await received(service, "replay")) == of_log
    async with Follower(service.watch(APP, USER, "v", after_revision=0)) as missed:
        await missed.reached(2)
    assert copied(missed.told) == {each for each in of_log if each[1] == "v"}


async def test_an_import_is_marked_and_keeps_the_marks_of_forks(
    service: MongoSessionService, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """What was appended in the source is an import's, and its copies a fork's."""
    await store_family(service)
    await exported(service, tmp_path / "all.jsonl")
    async with MongoSessionService(
        mongodb_uri, database=database, collection_prefix="copy_"
    ) as copy:
        async with Follower(copy.watch(APP)) as follower:
            await imported(tmp_path / "all.jsonl", copy)
            await follower.until(lambda: len(follower.told) == len(OF_FAMILY))
        of_log = {
            ("appended", session_id, revision, by or "import")
            for kind, session_id, revision, by in OF_FAMILY
            if kind == "appended"
        }
        lasts = {"s": 2, "t": 3, "u": 3, "v": 2}.items()
        created = {("created", it, revision, "import") for it, revision in lasts}
        assert copied(follower.told) == of_log | created
        assert copied(await received(copy, "replay")) == of_log
