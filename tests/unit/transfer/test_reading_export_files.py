"""JSON Lines read from files: of any length, packed or not, and from pipes."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest
from support.transfers import export_text

from mongo_session_service.model.records import SessionKey
from mongo_session_service.transfer import JsonLinesSource
from mongo_session_service.transfer.sources import Item, SessionHeader

FILE = export_text(SessionHeader(SessionKey("a", "u", "s"), {"n": 1}, 1.5))


async def read(path: Path) -> list[Item]:
    async with JsonLinesSource(path) as source:
        return [item async for item in source.read()]


async def test_a_line_that_is_too_long_is_left_out_alone(tmp_path: Path) -> None:
    """It is reported by its number, and the lines after it keep theirs."""
    header, session, *_ = FILE.splitlines()
    too_long = '{"app_state": "' + "x" * 64_000_000 + '"}'
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join([header, session, too_long, session[:-1], too_long]))

    found = list(map(str, (await read(path))[1:]))

    assert found == [
        "line 3: it has over 64,000,000 bytes",
        "line 4: it is not valid JSON; its events are left out, too",
        "line 5: it has over 64,000,000 bytes",
        "line 5: the file ends here, without its last line; it seems truncated",
    ]


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
async def test_a_named_pipe_is_read_as_a_file(tmp_path: Path, name: str) -> None:
    """A pipe cannot be rewound, nor need it be."""
    pipe = tmp_path / name
    os.mkfifo(pipe)
    content = gzip.compress(FILE.encode()) if name.endswith(".gz") else FILE.encode()
    writing = threading.Thread(target=pipe.write_bytes, args=(content,))
    writing.start()

    async with JsonLinesSource(pipe) as source:
        found = [item async for item in source.read()]
        share = source.share_read()
    writing.join()

    assert [type(each) for each in found] == [SessionHeader]
    assert share is None


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
async def test_a_file_reports_how_far_it_is_read(tmp_path: Path, name: str) -> None:
    """From nothing to all of it, as it lies on the disk, and again."""
    path = tmp_path / name
    content = FILE.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)

    async with JsonLinesSource(path) as source:
        shares = [source.share_read()]
        for _ in range(2):
            assert len([item async for item in source.read()]) == 1
            shares.append(source.share_read())

    assert shares == [0.0, 1.0, 1.0]
