"""The command that starts a MongoDB."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from support.consumers import append, create
from test_cli import running

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded.mongod import standard_port


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
async def test_mongod_keeps_its_data_directory(
    tmp_path: Path, ending: signal.Signals
) -> None:
    """It prints a URI that works, ends in good order, and brings the data back."""
    arguments = ("mongod", "--port", "0", "--data-dir", str(tmp_path))
    for is_again in (False, True):
        async with running("", "adk", *arguments) as command:
            uri = await command.line()
            async with MongoSessionService(uri) as service:
                if is_again:
                    found = await service.list_sessions(app_name="app")
                    assert len(found.sessions) == 1
                else:
                    await append(service, await create(service))
            assert str(tmp_path) in await command.line("stderr")
            following = await command.line("stderr")
            assert following == f"In another terminal: export MONGODB_URI='{uri}'"
            command.process.send_signal(ending)
            assert await command.line("stderr") == "MongoDB has ended."
            assert await command.ended() == 0


async def test_mongod_ends_with_its_server() -> None:
    """Whoever waits for it reads that the server has ended, and the exit code is 1."""
    async with running("", "adk", "mongod", "--port", "0") as command:
        with MongoClient[Any](await command.line()) as client:
            pid = client.admin.command("serverStatus")["pid"]
        for _ in range(2):
            await command.line("stderr")
        os.kill(pid, signal.SIGKILL)
        assert await command.line("stderr") == "Error: mongod has ended"
        assert await command.ended() == 1


async def test_mongod_listens_where_clients_look_for_it() -> None:
    """Without a port it has MongoDB's own, and any other if that is taken."""
    is_free = standard_port(None, 1) == 27017
    async with (
        running("", "adk", "mongod") as first,
        running("", "adk", "mongod", "--port", "0") as anywhere,
    ):
        uris = [await first.line(), await anywhere.line()]
        async with running("", "adk", "mongod") as second:
            uris.append(await second.line())
            await second.line("stderr")
            remark = await second.line("stderr")

    standard = [uri.startswith("mongodb://127.0.0.1:27017/") for uri in uris]
    assert standard == [is_free, False, False]
    assert len(set(uris)) == 3
    assert remark == "Port 27017 is taken, so it uses another."
