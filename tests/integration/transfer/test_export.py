"""The way out: an export and an import lose nothing, and other services take over."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.genai import types
from pymongo import MongoClient
from support.sample_data import fill
from support.transfers import IDS, exported, say

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import ConflictError, SourceError, TransferError
from mongo_session_service.transfer import (
    JsonLinesSource,
    Policies,
    Problem,
    StoreSource,
    export,
    move,
    verify,
)

ODD = {
    "": "empty key",
    "a.b": {"$set": 1, "%json": "x"},
    "big": 2**70,
    "nan": float("nan"),
    "lone": "\ud83d",
    "line\nbreak": " ",
    "%bytes": {"%bytes": "AA=="},
    "app:shared": [1.0, 1, True, None],
}


@pytest.fixture
async def filled(service: MongoSessionService) -> MongoSessionService:
    """The usual content, and what is hard to write down."""
    await fill(service)
    await service.create_session(
        app_name="odd",
        user_id="a/b",
        session_id="x",
        state=ODD,
        title="An odd one \u2028",
        labels={"b.c": "", "a": "$1"},
        ttl=3600.5,
    )
    session = await service.get_session(app_name="odd", user_id="a/b", session_id="x")
    assert session is not None
    blob = types.Blob(data=b"\x00\xff", mime_type="a/b")
    event = Event(
        author="x",
        content=types.Content(parts=[types.Part(inline_data=blob)]),
        actions=EventActions(state_delta=ODD),
        custom_metadata={"$ref": 1, "$id": 2},
    )
    await service.append_event(session, event)
    return service


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
async def test_export_import_export_gives_the_same_bytes(
    filled: MongoSessionService,
    copy: MongoSessionService,
    tmp_path: Path,
    suffix: str,
) -> None:
    """What is exported and imported elsewhere is exported as the very same file."""
    first = await exported(filled, tmp_path / f"first{suffix}")
    async with JsonLinesSource(tmp_path / f"first{suffix}") as source:
        result = await move(source, copy)
        async with StoreSource(copy) as target:
            verified = await verify(source, target, is_exact=True)
    second = await exported(copy, tmp_path / f"second{suffix}")

    assert (result.new, result.events, verified.is_equal) == (6, 25, True)
    assert second == first
    assert not list(tmp_path.glob("*.partial"))


async def test_other_details_are_a_conflict(
    filled: MongoSessionService, copy: MongoSessionService, tmp_path: Path
) -> None:
    """A title or label that differs is a conflict, and a difference."""
    odd = {"app_name": "odd", "user_id": "a/b", "session_id": "x"}
    path = tmp_path / "x.jsonl"
    found: list[Problem] = []
    await exported(filled, path)
    async with JsonLinesSource(path) as source, StoreSource(copy) as target:
        await move(source, copy)
        await copy.update_session(**odd, title="Another", labels=None, ttl=None)

        await verify(source, target, on_difference=found.append)
        with pytest.raises(ConflictError, match="title differs; labels differs"):
            await move(source, copy)

    assert [str(each).partition(": ")[2] for each in found] == [
        f"{name} differs" for name in ("title", "labels", "ttl", "expire_time")
    ]


async def test_sessions_that_have_expired_stay_behind(
    filled: MongoSessionService, copy: MongoSessionService, tmp_path: Path
) -> None:
    """An export of long ago brings nobody back; the rest is there, and is verified."""
    path = tmp_path / "x.jsonl"
    text = (await exported(filled, path)).decode()
    path.write_text(re.sub(r'"expire_time": [\d.]+', '"expire_time": 1.5', text))
    async with JsonLinesSource(path) as source, StoreSource(copy) as target:
        result = await move(source, copy)
        verified = await verify(source, target, is_exact=True)

    assert (result.new, result.expired, result.events) == (5, 1, 24)
    assert (verified.sessions, verified.is_equal) == (5, True)


async def test_an_export_leaves_pipes_and_links_what_they_are(
    filled: MongoSessionService, tmp_path: Path
) -> None:
    """It is written into a pipe or device, and through a link, never in their place."""
    path, link, pipe = (tmp_path / each for each in ("x.jsonl", "link", "pipe.gz"))
    plain = await exported(filled, path)
    path.write_bytes(b"")
    link.symlink_to(path)
    os.mkfifo(pipe)
    reading = asyncio.create_task(asyncio.to_thread(pipe.read_bytes))

    async with StoreSource(filled) as source:
        await export(source, link)
        await export(source, pipe)

    assert gzip.decompress(await reading) == plain
    assert (link.is_symlink(), pipe.is_fifo()) == (True, True)
    assert path.read_bytes() == plain


async def test_an_export_is_one_sorted_object_a_line(
    filled: MongoSessionService, tmp_path: Path
) -> None:
    """The file begins with its form, ends with its counts, and is sorted by key."""
    lines = (await exported(filled, tmp_path / "x.jsonl")).decode().split("\n")
    objects = [json.loads(line) for line in lines[:-1]]

    assert lines[-1] == ""
    assert objects[0] == {"format": "mongo-session-service", "version": 2}
    assert objects[-1] == {"end": {"sessions": 6, "events": 25}}
    sessions = [
        tuple(each["session"].values())[:3] for each in objects if "session" in each
    ]
    assert sessions == sorted(sessions)


async def test_an_append_during_an_export_does_not_tear_a_session(
    filled: MongoSessionService,
) -> None:
    """A session is read at the revision its state is of."""
    async with StoreSource(filled) as source:
        items = source.read()
        kinds = []
        async for item in items:
            if getattr(item, "key", None) == tuple(IDS.values()):
                await say(filled, "during", topic="during")
            kinds.append(type(item).__name__)
            assert not isinstance(item, Problem)
            assert getattr(item, "id", "") != "during"

    assert kinds.count("Event") == 25


async def test_a_deleted_event_stops_an_export(
    filled: MongoSessionService, admin: MongoClient, database: str, tmp_path: Path
) -> None:
    """An export that would lack something fails, and leaves no file behind."""
    admin[database].events.delete_one({"_id": {**IDS, "revision": 6}})

    with pytest.raises(TransferError, match="5 of 6 events"):
        await exported(filled, tmp_path / "x.jsonl")
    assert not list(tmp_path.glob("*"))


async def test_an_export_can_be_looked_at(
    service: MongoSessionService, tmp_path: Path
) -> None:
    """Nothing in it moves a terminal's cursor or turns its text round."""
    odd = "\x9b2J\u202e\x7f\u2028"
    session = await service.create_session(**IDS, state={odd: odd})
    await service.append_event(
        session, Event(author="x", content=types.UserContent(odd))
    )

    async with StoreSource(service) as source:
        await export(source, tmp_path / "x.jsonl")

    text = (tmp_path / "x.jsonl").read_text()
    assert text.replace("\n", "").isprintable()
    assert json.loads(text.splitlines()[1])["session"]["state"] == {odd: odd}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda it: it[:-2], "line 34: the file ends here"),
        (lambda it: [*it[:9], it[9][:20]], "line 10: it is not valid JSON"),
        (
            lambda it: [it[0], *[each for each in it if b'"event"' in each[:9]]],
            "line 2: an event has to follow its session",
        ),
        (lambda it: [*it[:9], *it[10:]], "line 35: the file should hold"),
        (lambda it: [*it, it[-1]], "line 37: the file had ended before"),
    ],
)
async def test_errors_of_damaged_files_name_the_line(
    service: MongoSessionService,
    copy: MongoSessionService,
    tmp_path: Path,
    damage: Any,
    message: str,
) -> None:
    """Whatever is wrong with them."""
    path = tmp_path / "x.jsonl"
    await fill(service)
    lines = (await exported(service, path)).splitlines(keepends=True)
    path.write_bytes(b"".join(damage(lines)))

    told: list[Problem] = []
    skipping = Policies(on_error="skip")
    async with JsonLinesSource(path) as source:
        with pytest.raises(TransferError, match=message):
            await move(source, copy)
        await move(source, copy, policies=skipping, on_problem=told.append)

    assert message in str(told[0]).replace("Cannot be moved: ", "")


async def test_a_truncated_archive_is_refused(
    filled: MongoSessionService, tmp_path: Path
) -> None:
    """A packed file that was cut off is an error at a line, not an end."""
    path = tmp_path / "x.jsonl.gz"
    packed = await exported(filled, path)
    assert gzip.decompress(packed)
    path.write_bytes(packed[: len(packed) // 2])

    async with JsonLinesSource(path) as source:
        with pytest.raises(SourceError, match="^Line ([0-9]+): the file's compr") as c:
            [item async for item in source.read()]

    line = int(str(c.value).partition(":")[0].removeprefix("Line "))
    assert 1 < line < len(gzip.decompress(packed).splitlines())
    assert "broken or truncated here. Copy or export it again." in str(c.value)
