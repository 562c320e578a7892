"""The wheel, installed where nothing else is."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
USE = """
import asyncio, sys
from google.adk.events import Event
from mongo_session_service import MongoSessionService

async def main():
    async with MongoSessionService(sys.argv[1], database=sys.argv[2]) as service:
        session = await service.create_session(app_name="a", user_id="u")
        await service.append_event(session, Event(author="x"))
        found = await service.get_session(
            app_name="a", user_id="u", session_id=session.id
        )
        print(len(found.events))

asyncio.run(main())
"""


def output(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.release
def test_the_wheel_works_alone(tmp_path: Path, mongodb_uri: str, database: str) -> None:
    """It has all that it needs, and what is not the package's it has not."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    output(*pip, "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    stored = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "mongo_session_service").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    output(programs / "python", "-m", "pip", "install", "-q", wheel, cwd=tmp_path)

    assert {each for each in names if ".dist-info/" not in each} == stored
    helped = output(programs / "mongo-session-service", "--help", cwd=tmp_path)
    assert "Usage: mongo-session-service" in helped
    used = output(programs / "python", "-c", USE, mongodb_uri, database, cwd=tmp_path)
    assert used == "1\n"
