"""Commands that are told to end: by Ctrl-C, or because their terminal or host does."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from pymongo import MongoClient
from support.cli_runner import PATIENCE, start
from support.failpoints import failing, victim_uri
from support.long_sessions import store_long_session
from support.sample_data import fill

from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey

ENDINGS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
KEY = SessionKey("app", "ada", "s")


@pytest.mark.daily(1)
@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_export_leaves_no_part_of_its_file(
    mongodb_uri: str,
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    tmp_path: Path,
    ending: signal.Signals,
) -> None:
    """What it has written is in clear, so none of it stays; the old file does."""
    await store_long_session(service, admin, database, KEY, 2_000)
    path = tmp_path / "sessions.jsonl"
    path.write_text("the last one")
    target = [victim_uri(mongodb_uri), "--database", database, "--to", str(path)]

    paused = {"blockConnection": True, "blockTimeMS": 60_000}

    with (
        failing(admin, "aggregate", skip=4, **paused) as wait_until_paused,
        start("export", *target) as process,
    ):
        wait_until_paused()
        during = list(tmp_path.iterdir())
        process.send_signal(ending)
        errors = process.communicate(timeout=PATIENCE)[1].decode()

    assert len(during) == 2
    assert process.returncode == 130
    assert errors == "\nInterrupted. Nothing was changed; run the same command again.\n"
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "the last one"


@pytest.mark.daily(1)
@pytest.mark.parametrize("command", [("watch",), ("live", "--port", "0", "--no-open")])
async def test_a_command_in_the_background_of_a_script_can_be_ended(
    mongodb_uri: str, service: MongoSessionService, database: str, command: tuple[str]
) -> None:
    """A shell has it ignore Ctrl-C, and SIGTERM ends it all the same."""
    await fill(service)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = start(*command, "--uri", mongodb_uri, "--database", database)
    finally:
        signal.signal(signal.SIGINT, before)

    with process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=PATIENCE)[1]

    assert (process.returncode, b"Traceback" in errors) == (130, False)
