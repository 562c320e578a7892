"""The first program of a newcomer who has not started MongoDB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.doc_blocks import LOCAL
from support.patience import PATIENCE

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"
NOWHERE = LOCAL.replace("27017", "1")
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


def test_the_quickstart_reports_a_missing_server_in_one_line() -> None:
    """It ends long before the driver would give up, without a traceback."""
    program = QUICKSTART.read_text().replace(LOCAL, NOWHERE)

    done = subprocess.run(
        [sys.executable, "-c", RUN, program],
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
