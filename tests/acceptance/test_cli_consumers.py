"""Consumers as services: run, removed and reset from the command line."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.cli_runner import call
from support.consumers import PATIENCE, append, begun, create, told
from test_cli import Running, running

from mongo_session_service import Change, MongoSessionService

HANDLERS = """
import asyncio, sys
async def tell(change):
    print(change.kind, change.revision, flush=True)
async def linger(change):
    print("begun", change.revision, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("done", change.revision, flush=True)
async def fail(change):
    raise ValueError
async def together(change, txn):
    print(change.kind, txn.in_transaction, flush=True)
"""


class Service(Running):
    """A consumer that the command line runs."""

    async def log_until(self, text: str) -> str:
        """Return what it logs, up to a line with this text."""
        assert self.process.stderr is not None
        lines = ""
        async with asyncio.timeout(PATIENCE):
            while text not in lines:
                line = await self.process.stderr.readline()
                assert line, lines
                lines += line.decode()
        return lines

    def answer(self) -> None:
        """Let the handler that lingers go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")


@pytest.fixture
def handlers(tmp_path: Path) -> Path:
    """A directory with a module of handlers."""
    (tmp_path / "billing_app.py").write_text(HANDLERS)
    return tmp_path


@asynccontextmanager
async def serving(
    uri: str, database: str, directory: Path, function: str, *options: str
) -> AsyncIterator[Service]:
    """Run consumer "billing" as a service would be."""
    handler = ("--handler", f"billing_app:{function}")
    command = ("consumers", "run", "billing", *handler, *options)
    async with running(uri, database, *command, cwd=directory) as started:
        yield Service(started.process)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_command_after_its_change_is_committed(
    mongodb_uri: str,
    service: MongoSessionService,
    database: str,
    handlers: Path,
    stop: signal.Signals,
) -> None:
    """It exits with 0, the change in hand is committed, and the next is not begun."""
    await append(service, await create(service), 2)
    async with serving(mongodb_uri, database, handlers, "linger") as running:
        assert await running.line() == "begun 1"
        running.process.send_signal(stop)
        log = await running.log_until("it ends after what is in hand")
        running.answer()
        assert await running.line() == "done 1"
        assert await running.ended() == 0
        assert await running.line() == ""
        log += await running.log_until("has ended")

    assert f"{stop.name}: it ends after what is in hand." in log
    assert "'billing' has ended: 1 change handled, 0 dead letters kept." in log
    [status] = await service.consumers()
    assert not status.is_active
    seen: list[Change] = []
    await service.consumer("billing").run(seen.append, until_caught_up=True)
    assert told(seen) == [("s", 2)]


async def test_a_name_of_another_app_is_a_wrong_argument(
    mongodb_uri: str, service: MongoSessionService, database: str, handlers: Path
) -> None:
    """It exits with 2, so that a supervisor need not start it again."""
    await append(service, await create(service))
    async with service.consumer("billing") as first:
        await anext(first)
    async with serving(
        mongodb_uri, database, handlers, "tell", "--app", "other"
    ) as refused:
        await refused.log_until("was started for all apps")
        assert await refused.ended() == 2


@pytest.mark.long
async def test_a_second_process_logs_its_takeover(
    mongodb_uri: str, service: MongoSessionService, database: str, handlers: Path
) -> None:
    """Its log has that it stands by, and then that it reads."""
    await append(service, await create(service))
    async with service.consumer("billing") as first:
        await anext(first)
        async with serving(mongodb_uri, database, handlers, "tell") as second:
            await second.log_until("'billing' stands by: another reader has its name.")
            await first.close()
            await second.log_until("'billing' takes over.")
            assert await second.line() == "appended 1"


@pytest.mark.limits(lease_seconds=0.5, lease_renewal_seconds=0.1)
async def test_a_second_signal_ends_the_command_at_once(
    mongodb_uri: str, service: MongoSessionService, database: str, handlers: Path
) -> None:
    """Nothing is committed of a handler that does not return."""
    await append(service, await create(service))
    async with serving(mongodb_uri, database, handlers, "linger") as running:
        assert await running.line() == "begun 1"
        running.process.send_signal(signal.SIGTERM)
        await running.log_until("it ends after what is in hand")
        running.process.send_signal(signal.SIGTERM)
        assert await running.ended() == -signal.SIGTERM

    seen: list[Change] = []
    await service.consumer("billing").run(seen.append, until_caught_up=True)
    assert told(seen) == [("s", 1)]


async def test_a_run_until_caught_up_ends_by_itself(
    mongodb_uri: str, service: MongoSessionService, database: str, handlers: Path
) -> None:
    """For cron: each run handles what came since, with the options of run()."""
    await append(service, await create(service), 2)
    options = ("--until-caught-up", "--app", "app")
    once = (mongodb_uri, database, handlers)
    async with serving(*once, "together", *options, "--transactional") as running:
        first = [await running.line() for _ in range(3)]
        await running.log_until("has ended: 2 changes handled, 0 dead letters kept.")
        assert await running.ended() == 0
    async with serving(*once, "tell", *options, "--concurrency", "4") as running:
        second = await running.line()
        assert await running.ended() == 0

    assert first == ["appended True", "appended True", ""]
    assert second == ""


async def test_a_consumer_is_reset(
    at: tuple[str, ...], service: MongoSessionService
) -> None:
    """It reads everything, nothing, or what is since a time."""
    session = await create(service)
    await append(service, session, 2)
    reset = ("consumers", "reset", "billing", *at)
    seen: list[Change] = []

    async def read() -> list[tuple[str, int | None]]:
        seen.clear()
        await service.consumer("billing").run(seen.append, until_caught_up=True)
        return told(seen)

    assert await read() == [("s", 1), ("s", 2)]
    done = call(*reset, "--to", "beginning", "--yes")
    assert await read() == [("s", 1), ("s", 2)]
    await append(service, session)
    skipped = call(*reset, "--yes")
    assert await read() == []
    since = call(*reset, "--to", str(time.time() - 3600), "--yes")
    soon = call(*reset, "--to", str(int(time.time()) - 1), "--yes")
    await append(service, session)
    assert ("s", 4) in await read()

    assert "reads the whole log again: 2 events." in done.stderr
    assert "reads nothing again, and skips the last " in skipped.stderr
    assert since.returncode == 1
    assert "MongoDB's oplog reaches back" in since.stderr
    assert soon.returncode == 0
    assert "reads all changes since 20" in soon.stderr


async def test_a_run_that_kept_dead_letters_exits_with_3(
    mongodb_uri: str, service: MongoSessionService, database: str, handlers: Path
) -> None:
    """It has caught up, but something was skipped after so many attempts."""
    await append(service, await create(service))
    options = ("--until-caught-up", "--max-attempts", "2")
    async with serving(mongodb_uri, database, handlers, "fail", *options) as running:
        log = await running.log_until("has ended")
        assert await running.ended() == 3
    assert "failed with ValueError, in attempt 1 of 2, on The change 'app" in log
    assert "is a dead letter of consumer 'billing' from now on" in log
    assert "has ended: 0 changes handled, 1 dead letter kept." in log
    [letter] = [it async for it in service.consumer("billing").dead_letters()]
    assert letter.attempts == 2


async def test_a_consumer_is_removed(
    at: tuple[str, ...], service: MongoSessionService
) -> None:
    """With its dead letters; the name begins anew, and others are left alone."""
    await append(service, await create(service))
    for name in ("billing", "other"):
        await service.consumer(name).run(
            lambda _: 1 / 0, max_attempts=1, until_caught_up=True
        )
    remove = ("consumers", "remove", "billing", *at)
    done, again = call(*remove, "--yes"), call(*remove, "--yes")
    [left] = await service.consumers()

    assert "Removed the checkpoint and 1 dead letter of billing in" in done.stderr
    assert again.returncode == 1
    assert "No consumer is named 'billing'" in again.stderr
    assert (left.name, left.dead_letters) == ("other", 1)


@pytest.mark.parametrize("command", ["remove", "reset"])
async def test_a_consumer_that_runs_is_neither_removed_nor_reset(
    at: tuple[str, ...], service: MongoSessionService, command: str
) -> None:
    """The message says who runs it, and it goes on undisturbed."""
    await create(service)
    consumer = service.consumer("billing")
    reading = asyncio.create_task(anext(consumer))
    await begun(service)
    arguments = ("consumers", command, "billing", "--yes")
    refused = await asyncio.to_thread(call, *arguments, *at)
    [status] = await service.consumers()
    reading.cancel()
    await consumer.close()

    assert refused.returncode == 1
    assert f"'billing' is run by {status.owner}. Stop that program" in refused.stderr
    assert str(os.getpid()) in refused.stderr
    assert status.epoch == 1
