"""The release before this one, at work on the same sessions at the same time."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support import two_releases
from support.two_releases import APPENDS, SESSIONS

from mongo_session_service import MongoSessionService

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0


def git(*arguments: str) -> str:
    program = shutil.which("git")
    assert program is not None
    done = subprocess.run(
        [program, *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """The package as it was released last, or else before the latest change of it."""
    tags = git("tag", "--merged", "HEAD~1", "--sort=-creatordate").splitlines()
    changes = git("log", "-2", "--format=%H", "--", "mongo_session_service")
    commit = tags[0] if tags else changes.splitlines()[-1]
    archive = tmp_path / "package.tar"
    git("archive", "-o", str(archive), commit, "mongo_session_service")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.mark.release
async def test_two_releases_write_and_read_the_same_sessions(
    mongodb_uri: str, database: str, earlier: Path
) -> None:
    """Nothing is lost, doubled or shown in another way, by either of them."""
    async with MongoSessionService(mongodb_uri, database=database) as service:
        for key in SESSIONS:
            await service.create_session(**key)
    paths = os.pathsep.join((str(earlier), str(ROOT / "tests")))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "support.two_releases"),
        *(mongodb_uri, database, "earlier"),
        env=os.environ | {"PYTHONPATH": paths},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        await two_releases.write(mongodb_uri, database, "later")
        output, _ = await process.communicate(b"\n")
    shown = json.loads(output)
    found = await two_releases.read(mongodb_uri, database, "later")

    assert shown.pop("package").startswith(str(earlier))
    assert shown == found
    assert len(found["listed"]) == len(SESSIONS)
    for session in found["sessions"]:
        authors = [each["author"] for each in session["events"]]
        assert authors.count("earlier") == authors.count("later") == APPENDS
        last = APPENDS - 1
        assert session["state"]["earlier"] == session["state"]["later"] == last
    appended = [each for each in found["changes"] if each.startswith("appended")]
    assert len(appended) == len(SESSIONS) * 2 * APPENDS
