"""The way out: an export and an import lose nothing, and other services take over."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from filling import APPS, fill
from google.adk.events import Event, EventActions
from google.adk.sessions import DatabaseSessionService, InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from moving import IDS, say
from pymongo import MongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import ConflictError, SourceError, TransferError
from mongo_session_service.transfer import (
    JsonLinesSource,
    Policies,
    Problem,
    ServiceSource,
    StoreSource,
    export,
    hand_over,
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


async def exported(service: MongoSessionService, path: Path) -> bytes:
    async with StoreSource(service) as source:
        await export(source, path)
    return path.read_bytes()


@pytest.fixture
async def filled(service: MongoSessionService) -> MongoSessionService:
    """The usual content, and what is hard to write down."""
    await fill(service)
    await service.create_session(
        app_name="odd", user_id="a/b", session_id="x", state=ODD
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
    mongodb_uri: str,
    database: str,
    tmp_path: Path,
    suffix: str,
) -> None:
    """What is exported and imported elsewhere is exported as the very same file."""
    first = await exported(filled, tmp_path / f"first{suffix}")
    async with MongoSessionService(
        mongodb_uri, database=database, collection_prefix="copy_"
    ) as copy:
        async with JsonLinesSource(tmp_path / f"first{suffix}") as source:
            result = await move(source, copy)
            async with StoreSource(copy) as target:
                verified = await verify(source, target, is_exact=True)
        second = await exported(copy, tmp_path / f"second{suffix}")

    assert (result.new, result.events, verified.is_equal) == (6, 25, True)
    assert second == first
    assert not list(tmp_path.glob("*.partial"))


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
    assert objects[0] == {"format": "mongo-session-service", "version": 1}
    assert objects[-1] == {"end": {"sessions": 6, "events": 25}}
    sessions = [
        tuple(each["session"].values())[:3] for each in objects if "session" in each
    ]
    assert sessions == sorted(sessions)


async def test_what_is_appended_during_an_export_does_not_tear_it(
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


def cut(lines: list[bytes]) -> list[bytes]:
    return lines[:-2]


def cut_in_a_line(lines: list[bytes]) -> list[bytes]:
    return [*lines[:9], lines[9][:20]]


def swap(lines: list[bytes]) -> list[bytes]:
    return [lines[0], *[each for each in lines if b'"event"' in each[:9]]]


def miscount(lines: list[bytes]) -> list[bytes]:
    return [*lines[:9], *lines[10:]]


def go_on(lines: list[bytes]) -> list[bytes]:
    return [*lines, lines[-1]]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "line 34: the file ends here"),
        (cut_in_a_line, "line 10: it is not valid JSON"),
        (swap, "line 2: an event has to follow its session"),
        (miscount, "line 35: the file should hold"),
        (go_on, "line 37: the file had ended before"),
    ],
)
async def test_damaged_files_are_told_by_line(
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    tmp_path: Path,
    damage: Any,
    message: str,
) -> None:
    """Whatever is wrong with a file, the error names the line."""
    path = tmp_path / "x.jsonl"
    await fill(service)
    lines = (await exported(service, path)).splitlines(keepends=True)
    path.write_bytes(b"".join(damage(lines)))

    target = {"database": database, "collection_prefix": "copy_"}
    told: list[Problem] = []
    skipping = Policies(on_error="skip")
    async with (
        MongoSessionService(mongodb_uri, **target) as copy,
        JsonLinesSource(path) as source,
    ):
        with pytest.raises(TransferError, match=message):
            await move(source, copy)
        await move(source, copy, policies=skipping, on_problem=told.append)

    assert message in str(told[0]).replace("Cannot be moved: ", "")


async def test_a_truncated_archive_is_refused(
    filled: MongoSessionService, tmp_path: Path
) -> None:
    """A packed file that was cut off is an error, not an end."""
    path = tmp_path / "x.jsonl.gz"
    packed = await exported(filled, path)
    assert gzip.decompress(packed)
    path.write_bytes(packed[: len(packed) // 2])

    async with JsonLinesSource(path) as source:
        with pytest.raises(SourceError, match="broken or truncated"):
            [item async for item in source.read()]


def database_service(folder: Path) -> DatabaseSessionService:
    return DatabaseSessionService(f"sqlite+aiosqlite:///{folder}/out.db")


def sqlite_service(folder: Path) -> SqliteSessionService:
    return SqliteSessionService(str(folder / "out.db"))


def in_memory_service(_: Path) -> InMemorySessionService:
    return InMemorySessionService()


@pytest.mark.parametrize("make", [database_service, sqlite_service, in_memory_service])
async def test_any_service_can_take_over(
    service: MongoSessionService, tmp_path: Path, make: Any
) -> None:
    """Sessions, events and state of all scopes go to another service, and once only."""
    await fill(service)
    other = make(tmp_path)

    async with StoreSource(service) as source:
        given = await hand_over(source, other)
        again = await hand_over(source, other)
        found: list[Problem] = []
        await verify(
            source,
            ServiceSource(other, APPS),
            is_exact=True,
            on_difference=found.append,
        )

    if isinstance(other, DatabaseSessionService):
        await other.close()
    assert (given.sessions, given.events) == (5, 24)
    assert (again.sessions, again.events, again.known) == (0, 0, 5)
    # Public methods cannot set when a session without events was created.
    assert [str(each) for each in found if "'empty'" not in str(each)] == []


async def test_a_service_with_other_events_is_told(
    service: MongoSessionService,
) -> None:
    """A session that is another one there is a conflict, or left alone."""
    await fill(service)
    other = InMemorySessionService()
    await other.create_session(**IDS)
    await say(other, "something else")

    async with StoreSource(service) as source:
        with pytest.raises(ConflictError, match="'s1' of user 'ada'"):
            await hand_over(source, other)
        given = await hand_over(source, other, on_conflict="skip")

    session = await other.get_session(**IDS)
    assert session is not None
    assert [given.skipped, len(session.events)] == [1, 1]
