"""Tests that do not end by themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HANGING = """
import asyncio, threading

async def test_waiting():
    await asyncio.Event().wait()

async def test_fine():
    pass

def test_stuck():
    threading.Event().wait()
"""


@pytest.mark.release
def test_a_test_that_hangs_fails(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """A coroutine fails alone; what else is stuck is ended, and shown where it is."""
    (tmp_path / "test_hanging.py").write_text(HANGING)
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['support.timeout_plugin']")
    settings = ("-o", "faulthandler_timeout=1", "-o", f"cache_dir={tmp_path}")
    pytest_ = ("-u", "-m", "pytest", "-c", pytestconfig.inipath, "-v", "-p", "no:xdist")

    ran = subprocess.run(
        [sys.executable, *pytest_, *settings, tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 1
    assert "test_waiting FAILED" in ran.stdout
    assert "test_fine PASSED" in ran.stdout
    assert "in test_stuck" in ran.stderr
