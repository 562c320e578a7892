"""The file of an export: complete, its owner's alone, and in nobody's way."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from support.transfers import export_text

from mongo_session_service.errors import TransferError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.transfer import (
    EVERYTHING,
    JsonLinesSource,
    Selection,
    export,
)
from mongo_session_service.transfer.sources import Item, SessionHeader

FILE = export_text(SessionHeader(SessionKey("a", "u", "s"), {"x": 1}, 1.0))


class Slow(JsonLinesSource):
    """Lets another export run before each item."""

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        async for item in super().read(selection):
            await asyncio.sleep(0)
            yield item


@pytest.fixture
def source(tmp_path: Path) -> Slow:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "x.jsonl").write_text(FILE)
    return Slow(folder / "x.jsonl")


async def exported(source: Slow, path: Path | str) -> None:
    async with source:
        await export(source, path)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_exports_to_one_file_at_once_leave_one_of_them(
    source: Slow, tmp_path: Path
) -> None:
    """Each writes a file of its own, so the last one's is whole."""
    path = tmp_path / "x.jsonl"
    other = Slow(tmp_path / "source" / "x.jsonl")

    await asyncio.gather(exported(source, path), exported(other, path))

    assert path.read_text() == FILE
    assert sorted(each.name for each in tmp_path.iterdir()) == ["source", "x.jsonl"]


async def test_files_under_other_names_are_not_overwritten(
    source: Slow, tmp_path: Path
) -> None:
    """Neither another file, nor the target of a planted link."""
    path, mine = tmp_path / "x.jsonl", tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "x.jsonl.partial").symlink_to(mine)
    (tmp_path / "x.partial").write_text("mine")

    await exported(source, path)

    assert path.read_text() == FILE
    assert mine.read_text() == (tmp_path / "x.partial").read_text() == "mine"
    assert (tmp_path / "x.jsonl.partial").is_symlink()


@pytest.mark.parametrize("before", [None, 0o600, 0o640, 0o644])
async def test_a_file_keeps_its_mode(
    source: Slow, tmp_path: Path, before: int | None
) -> None:
    """A new one is its owner's alone."""
    path = tmp_path / "x.jsonl"
    if before is not None:
        path.touch()
        path.chmod(before)

    await exported(source, path)

    assert mode(path) == (0o600 if before is None else before)


async def test_a_failed_export_leaves_the_old_file(tmp_path: Path) -> None:
    """The file of before keeps its content, and nothing is left beside it."""
    path, broken = tmp_path / "x.jsonl", tmp_path / "broken.jsonl"
    path.write_text("before")
    broken.write_text("\n".join(FILE.splitlines()[:-1]))

    with pytest.raises(TransferError, match="truncated"):
        await exported(Slow(broken), path)

    assert path.read_text() == "before"
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "broken.jsonl",
        path.name,
    ]


@pytest.mark.parametrize("name", ["", "x/", "a\0b", ".", "/", "no/such/place"])
async def test_a_target_that_is_no_file_is_refused(
    source: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """One line says so, and nothing is written."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(TransferError) as refused:
        await exported(source, name)

    assert re.fullmatch(
        r"'[^\n]*' (is not the name of|cannot be written).*", str(refused.value)
    )
    assert [each.name for each in tmp_path.iterdir()] == ["source"]


async def test_a_pipe_without_a_path_is_written(source: Slow) -> None:
    """As ``/dev/stdout`` in a pipeline, which leads to no name in a folder."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as reading:
        with os.fdopen(writer, "wb"):
            await exported(source, f"/dev/fd/{writer}")
        assert reading.read().decode() == FILE
