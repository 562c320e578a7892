"""The command that starts a MongoDB."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from commands import run
from consuming import append, create
from test_cli import running

from mongo_session_service import MongoSessionService


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
async def test_mongod_keeps_what_it_is_told_to(
    tmp_path: Path, ending: signal.Signals
) -> None:
    """It prints a URI that works, ends in good order, and brings the data back."""
    for is_again in (False, True):
        async with running("", "adk", "mongod", "--data-dir", str(tmp_path)) as command:
            uri = await command.line()
            async with MongoSessionService(uri) as service:
                if is_again:
                    found = await service.list_sessions(app_name="app")
                    assert len(found.sessions) == 1
                else:
                    await append(service, await create(service))
            assert str(tmp_path) in await command.line("stderr")
            command.process.send_signal(ending)
            assert await command.line("stderr") == "MongoDB has ended."
            assert await command.ended() == 0


def test_mongod_says_why_it_does_not_start(tmp_path: Path) -> None:
    """A directory of another number of members is refused in one line."""
    (tmp_path / "ports.json").write_text("[1]")

    result = run("mongod", "--members", "2", "--data-dir", str(tmp_path))

    assert result.returncode == 1
    assert "replica set of 1 members, not 2" in result.stderr
    assert result.stderr.count("\n") == 1
