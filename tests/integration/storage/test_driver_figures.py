"""The program by which a page compares PyMongo's client with a bare connection."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "scripts" / "benchmark" / "driver.py"


@pytest.mark.release
def test_it_measures_both(mongodb_uri: str) -> None:
    """In turns: PyMongo's command takes more turns of the event loop."""
    env = {**os.environ, "MONGODB_URI": mongodb_uri}
    done = subprocess.run(
        [sys.executable, PROGRAM, "20"],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    line = r"PyMongo: \d+ µs of CPU, (\S+) turns\nbare: \d+ µs of CPU, (\S+) turns\n"
    found = re.findall(line, done.stdout)
    assert len(found) == 3
    assert all(float(pymongo) > float(bare) for pymongo, bare in found)
