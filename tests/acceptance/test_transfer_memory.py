"""Input that is small, but would take much memory, is left out and named."""

from __future__ import annotations

import gzip
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

from support.cli_runner import PATIENCE
from support.foreign_stores import Place, sql_v0_filled

from mongo_session_service.transfer import jsonl

MEASURED = """
import sys
from pathlib import Path
from mongo_session_service.cli.app import main

try:
    main(sys.argv[1:])
finally:
    Path(f"{__file__}.status").write_text(Path("/proc/self/status").read_text())
"""
MOST = 300_000
"""Kilobytes, most of which the program itself takes."""

SESSION = (
    b'{"session": {"app_name": "a", "user_id": "u", "session_id": "%s",'
    b' "update_time": 1.0, "state": {"x": %s}}}\n'
)
PARTS = b'{"event": {"author": "x", "content": {"parts": %s}}}\n'
DELTA = b'{"event": {"author": "x", "actions": {"state_delta": {"x": %s}}}}\n'
EVENT = b'{"event": {"author": "x", "id": "1", "invocation_id": ""}}\n'

PICKLES = [
    b"\x80\x02Nr\xff\xff\xff\x7f.",  # remembers a value under the largest number
    b"Np2147483647\n.",
    b"]" * 20_000_000,
    b"\x80\x02}" + b"K\x01" + b"\x85" * 1_000_000 + b"K\x01s.",  # hashed on the stack
    b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".",
    b"\x80\x02](" + b"".join(b"M" + n.to_bytes(2, "little") for n in range(60_000))
    + b"eq\x010(" + b"cbuiltins\nset\nh\x01\x85R" * 5_000 + b"l.",
]  # fmt: skip


def many(value: bytes, size: int) -> bytes:
    """A JSON array of this many bytes, about."""
    return b"[" + (value + b",") * (size // (len(value) + 1)) + value + b"]"


def measured(tmp_path: Path, *arguments: str) -> tuple[list[str], str, int]:
    """The problems, the result, and the peak in kilobytes of a command."""
    program = tmp_path / "measured.py"
    program.write_text(MEASURED)
    done = subprocess.run(
        [sys.executable, program, *arguments, "--on-error", "skip"],
        capture_output=True,
        check=False,
        text=True,
        timeout=PATIENCE,
    )
    status = Path(f"{program}.status").read_text()
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    problems = re.findall(r"^  (.*): it[s']? ", done.stderr, re.MULTILINE)
    return problems, done.stdout, int(peak)


def test_a_short_file_of_large_lines_takes_little(
    mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """Each line that would take too much is a problem; the others are imported."""
    path = tmp_path / "x.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(jsonl.as_text(jsonl.HEADER).encode() + b"\n")
        file.write(SESSION % (b"first", b"1"))
        file.write(EVENT)
        file.write(SESSION % (b"h1", many(b"[]", 120_000_000)))
        file.write(SESSION % (b"h2", many(b'{"":{}}', 20_000_000)))
        file.write(SESSION % (b"h3", b'"' + b"x" * 60_000_000 + b'"'))
        file.write(SESSION % (b"h4", many(b"[]", 2_100_000)))
        file.write(SESSION % (b"h5", many(b"1.5", 3_200_000)))
        file.write(SESSION % (b"last", b"2"))
        file.write(PARTS % many(b"{}", 900_000))
        file.write(PARTS % many(b"1", 4_000_000))
        file.write(DELTA % many(b"[]", 5_000_000))
        file.write(jsonl.end_line(7, 4).encode() + b"\n")

    target = [mongodb_uri, "--database", database]
    problems, result, peak = measured(tmp_path, "import", "jsonl", str(path), *target)

    assert path.stat().st_size < 1_000_000
    assert problems == [f"line {number}" for number in (4, 5, 6, 10, 11, 12)]
    assert "Moved 1 event" in result
    assert "4 new, 6 problems" in result
    assert peak < MOST, peak


async def test_pickles_of_a_few_bytes_take_little(
    place: Place, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """Each event whose pickle would take too much is a problem, and the rest moves."""
    store = await sql_v0_filled(place)
    file = sqlite3.connect(store.command[1].removeprefix("sqlite:///"))
    ids = [each for [each] in file.execute("SELECT id FROM events ORDER BY id")]
    changes = list(zip(PICKLES, ids, strict=False))
    file.executemany("UPDATE events SET actions = ? WHERE id = ?", changes)
    file.commit()
    file.close()

    target = [mongodb_uri, "--database", database]
    problems, result, peak = measured(tmp_path, "import", *store.command, *target)

    assert len(problems) == len(PICKLES)
    assert f"Moved {len(ids) - len(PICKLES)} events" in result
    assert peak < MOST, peak
