"""First programs of a newcomer who has not started MongoDB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.doc_blocks import LOCAL, blocks_of

ROOT = Path(__file__).parents[2]
NOWHERE = LOCAL.replace("27017", "1")
PATIENCE = 60  # seconds
DRIVERS_PATIENCE = 30  # seconds
RUN = """
import sys, time
import google.adk.events, mongo_session_service.service
begun = time.monotonic()
try:
    exec(sys.argv[1], {"__name__": "__main__"})
finally:
    print(time.monotonic() - begun)
"""
"""A program that runs another one, and says how long that took without its imports."""


def program(page: str) -> str:
    """Return a page's first program, at a port where nobody listens."""
    path = ROOT / page
    if path.suffix == ".py":
        return path.read_text().replace(LOCAL, NOWHERE)
    blocks = [each for each in blocks_of(path) if each.title == "remember.py"]
    return blocks[0].text.replace(LOCAL, NOWHERE)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/getting-started.md", "examples/quickstart.py"]
)
def test_the_quickstart_reports_a_missing_server_in_one_line(page: str) -> None:
    """It ends long before the driver would give up, without a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, program(page)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={"PATH": ""},
    )

    assert done.returncode == 1
    assert float(done.stdout) < DRIVERS_PATIENCE
    assert done.stderr.startswith("MongoDB is unavailable: 127.0.0.1:1: ")
    assert "Check that mongod is running there" in done.stderr
    assert done.stderr.count("\n") == 1
