"""Input that is small, but would take much memory, is left out and named."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

from support.cli_runner import PATIENCE

from mongo_session_service.transfer import export_file

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
        file.write(export_file.HEADER.encode() + b"\n")
        file.write(SESSION % (b"first", b"1"))
        file.write(EVENT)
        file.write(SESSION % (b"h1", many(b"[]", 120_000_000)))
        file.write(SESSION % (b"h2", many(b'{"":{}}', 20_000_000)))
        file.write(SESSION % (b"h4", many(b"[]", 2_100_000)))
        file.write(SESSION % (b"h5", many(b"1.5", 3_200_000)))
        file.write(SESSION % (b"last", b"2"))
        file.write(PARTS % many(b"{}", 900_000))
        file.write(PARTS % many(b"1", 4_000_000))
        file.write(DELTA % many(b"[]", 5_000_000))
        file.write(export_file.encode_end(6, 4).encode() + b"\n")

    target = [mongodb_uri, "--database", database]
    problems, result, peak = measured(tmp_path, "import", "jsonl", str(path), *target)

    assert path.stat().st_size < 1_000_000
    assert problems == [f"line {number}" for number in (4, 5, 9, 10, 11)]
    assert "Moved 1 event" in result
    assert "4 new, 5 problems" in result
    assert peak < MOST, peak
