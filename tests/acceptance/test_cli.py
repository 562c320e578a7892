"""The commands that show what happens."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import click
import httpx
import pytest
from google.adk.events import Event, EventActions
from google.genai import types
from support.cli_runner import ENVIRONMENT, PROGRAM, call, run
from support.consumers import PATIENCE, append, create, take
from support.conversations import start
from support.one_session import IDS
from support.spoken_model import SpokenModel

from mongo_session_service import MongoSessionService
from mongo_session_service.cli.app import main

SESSION = ("--app", "app", "--user", "user", "--session", "s")


class Running:
    """A command that goes on until it is told to end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self, stream: str = "stdout") -> str:
        reader = getattr(self.process, stream)
        async with asyncio.timeout(PATIENCE):
            return (await reader.readline()).decode().rstrip("\n")

    async def ended(self) -> int:
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


@asynccontextmanager
async def running(
    uri: str, database: str, *arguments: str, cwd: Path | None = None
) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *arguments,
        env=ENVIRONMENT | {"MONGODB_URI": uri.replace("/?", f"/{database}?")},
        cwd=cwd,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_watch_prints_changes_as_they_come(
    mongodb_uri: str, service: MongoSessionService, database: str
) -> None:
    """A line has author, time, event and state; the session's end ends the command."""
    session = await create(service)
    async with running(mongodb_uri, database, "watch", *SESSION) as command:
        watching = await command.line("stderr")
        where = f"database {database} on {mongodb_uri[10:].partition('/')[0]}"
        assert watching == f"Watching session app/user/s in {where}."
        assert (await command.line()).endswith("  snapshot  r0 s")
        call = types.Part.from_function_call(name="get_weather", args={"city": "Turin"})
        event = Event(
            author="agent",
            content=types.ModelContent(call),
            actions=EventActions(state_delta={"user:city": "Turin"}),
        )
        await service.append_event(session, event)
        line = await command.line()
        await service.delete_session(app_name="app", user_id="user", session_id="s")

        says = 'agent          get_weather(city="Turin")  user:city="Turin"'
        assert line.endswith(f"  {says}  appended r1 s")
        assert "deleted" in await command.line()
        assert await command.ended() == 0


async def test_watch_prints_what_a_turn_is_saying(
    mongodb_uri: str, service: MongoSessionService, database: str
) -> None:
    """With --partials an answer is read while it arrives, and again when stored."""
    model = SpokenModel()
    await service.create_session(**IDS)
    partials = ("watch", "--partials", *SESSION)
    async with running(mongodb_uri, database, *partials) as command:
        await command.line()
        turn = await start(service, model)
        lines = [await command.line() for _ in range(2)]
        model.say("Turin is ")
        lines.append(await command.line())
        model.end_answer()
        await turn.result()
        lines += [await command.line() for _ in range(2)]

    says = [" ".join(line.split()[1:-1]) for line in lines]
    assert says == [
        "turn running",
        "user hi appended r1",
        "agent Turin is partial",
        "agent Turin is appended r2",
        "turn ended",
    ]


async def test_watch_can_print_json(
    mongodb_uri: str, service: MongoSessionService, database: str
) -> None:
    """With --json each line is a change, and Ctrl-C ends it quietly with 130."""
    await service.create_session(app_name="apps", user_id="user")
    watch = ("watch", "--json", "--app", "app")
    async with running(mongodb_uri, database, *watch) as command:
        assert (await command.line("stderr")).startswith("Watching app app in ")
        await append(service, await create(service))
        created, appended = [json.loads(await command.line()) for _ in range(2)]
        command.process.send_signal(signal.SIGINT)
        assert await command.ended() == 130
        assert await command.line("stderr") == ""

    assert (created["kind"], created["session_id"]) == ("created", "s")
    assert (appended["kind"], appended["revision"]) == ("appended", 1)
    assert appended["event"]["actions"]["stateDelta"] == {"n": 0}


async def test_watch_goes_on_where_it_was(
    mongodb_uri: str, service: MongoSessionService, database: str
) -> None:
    """Given --after-revision, it prints the session's later events first."""
    await append(service, await create(service), 3)
    arguments = ("watch", *SESSION, "--after-revision", "1", "--json")
    async with running(mongodb_uri, database, *arguments) as command:
        revisions = [json.loads(await command.line())["revision"] for _ in range(2)]

    assert revisions == [2, 3]


@pytest.mark.parametrize("options", ["", "--json"])
async def test_watch_ends_with_its_pipe(
    mongodb_uri: str, service: MongoSessionService, database: str, options: str
) -> None:
    """After "| head" the next change ends it, and it has nothing to complain of."""
    session = await create(service)
    uri = mongodb_uri.replace("/?", f"/{database}?")
    shell = f"'{PROGRAM}' watch {' '.join(SESSION)} {options} | head -1"
    async with asyncio.timeout(PATIENCE):
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", f"set -o pipefail; {shell}"),
            env=ENVIRONMENT | {"MONGODB_URI": uri},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        line = await process.stdout.readline()
        await append(service, session)
        _, errors = await process.communicate()

    assert b"snapshot" in line
    assert process.returncode == 1
    assert re.fullmatch("Watching .*\n", errors.decode())


async def test_live_serves_the_page_to_this_machine_only(
    mongodb_uri: str, service: MongoSessionService, database: str
) -> None:
    """The page and the changes of one session are served, and nothing else.

    Ctrl-C ends it quietly, though a page is open.
    """
    await create(service)
    await create(service, "other")
    arguments = ("live", *SESSION, "--port", "0", "--no-open")
    async with (
        running(mongodb_uri, database, *arguments) as command,
        httpx.AsyncClient(timeout=PATIENCE) as client,
    ):
        url = httpx.URL(await command.line())
        await command.line("stderr")
        page = await client.get(url)
        token = {"Authorization": f"Bearer {url.params['token']}"}
        own = "/apps/app/users/user/sessions"
        sessions = await client.get(url.join(own), headers=token)
        other = await client.get(url.join(f"{own}/other"), headers=token)
        foreign = await client.get(url, headers={"Host": "example.com"})
        async with httpx.AsyncClient() as stranger:
            strange = [
                (await stranger.get(url.join(path))).status_code
                for path in (own, f"{own}/s", f"{own}/s/changes", "/apps")
            ]
        changes = url.join(f"{own}/s/changes")
        async with client.stream("GET", changes, headers=token) as opened:
            lines = opened.aiter_lines()
            while not (line := await anext(lines)).startswith("event:"):
                pass
            command.process.send_signal(signal.SIGINT)
            assert await command.ended() == 130
            assert await command.line("stderr") == ""
            assert [each async for each in lines][-1] == ""

    assert url.host == "127.0.0.1"
    assert len(url.params["token"]) > 40
    assert set(strange) == {401}
    assert page.headers["content-type"].startswith("text/html")
    assert sessions.status_code == 403
    assert line == "event: snapshot"
    assert other.status_code == 403
    assert foreign.status_code == 400


async def test_consumers_shows_those_behind(
    at: tuple[str, ...], service: MongoSessionService
) -> None:
    """Names, lag, lease and dead letters are one row each, or one JSON line."""
    await append(service, await create(service), 2)
    async with service.consumer("billing", app_name="app") as consumer:
        await take(consumer, 1, commit=True)
        table = await asyncio.to_thread(run, "consumers", *at)
    text, stopped = call("consumers", "--json", *at), call("consumers", *at)

    header, row = table.stdout.splitlines()
    assert header.split()[:3] == ["NAME", "APP", "LAG"]
    assert row.split()[:2] == ["billing", "app"]
    assert row.split()[-1].count(":") == 2  # its owner
    assert json.loads(text.stdout)["is_active"] is False
    assert "billing: nobody runs it. Start the program that does." in stopped.stderr


async def test_dead_letters_are_listed(
    at: tuple[str, ...], service: MongoSessionService
) -> None:
    """What a handler has failed on is shown with its error, and the change in JSON."""
    await append(service, await create(service))
    consumer = service.consumer("billing")

    async def handler(_: object) -> None:
        await consumer.close()
        raise ValueError("no such account")

    await consumer.run(handler, max_attempts=1)
    status = call("consumers", *at)
    table = call("consumers", "dead-letters", "billing", *at)
    text = call("consumers", "dead-letters", "billing", "--json", *at)

    assert "1 dead letter. `mongo-session-service consumers dead-l" in status.stderr
    assert "app/user/s" in table.stdout
    assert "ValueError" in table.stdout
    assert json.loads(text.stdout)["change"]["revision"] == 1


HANDLERS = """
seen = []
def fail(change):
    raise ValueError("still no such account")
async def handle(change):
    print(change.kind, change.revision)
async def handle_together(change, txn):
    print(change.kind, txn.in_transaction)
"""


async def test_dead_letters_are_handled_again(
    at: tuple[str, ...],
    service: MongoSessionService,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A handler of the current directory gets them; those it fails on stay."""
    name = f"handlers_{database}"
    (tmp_path / f"{name}.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    await append(service, await create(service), 2)
    consumer, seen = service.consumer("billing"), []

    async def handler(change: object) -> None:
        seen.append(change)
        if len(seen) == 2:
            await consumer.close()
        raise ValueError("no such account")

    await consumer.run(handler, max_attempts=1)

    def replayed(function: str, *options: str) -> subprocess.CompletedProcess[str]:
        handler = f"{name}:{function}"
        replay = ("consumers", "replay", "billing", "--handler", handler)
        return call(*replay, *options, *at)

    nowhere = ("consumers", "replay", "b", "--handler", "nowhere:x")
    failed, text = replayed("fail"), replayed("fail", "--json")
    misspelt, missing = replayed("handel"), call(*nowhere, *at)
    letters = [each async for each in service.consumer("billing").dead_letters()]
    handled = replayed("handle_together", "--transactional")

    assert (failed.returncode, text.returncode, handled.returncode) == (3, 3, 0)
    assert "Handled 0 dead letters" in failed.stderr
    assert "2 dead letters left: `mongo-session-service con" in failed.stderr
    assert json.loads(text.stdout) == {"handled": 0, "left": 2}
    assert [each.attempts for each in letters] == [3, 3]
    assert handled.stdout == "appended True\nappended True\n"
    assert "Handled 2 dead letters of billing" in handled.stderr
    assert (misspelt.returncode, missing.returncode) == (2, 2)
    assert "Did you mean 'handle'?" in misspelt.stderr
    assert "There is no module 'nowhere'" in missing.stderr


def test_a_port_in_use_is_named(mongodb_uri: str) -> None:
    """With what to do about it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        done = call("live", "--no-open", "--port", str(port), "--uri", mongodb_uri)

    assert done.returncode == 1
    assert done.stderr == (
        f"Error: Cannot listen on port {port}: Address already in use. Choose another"
        " with --port, or any free one with --port 0.\n"
    )


def leaves(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """Every command that is no group of others, by its path."""
    if not isinstance(command, click.Group):
        yield path
        return
    for name, each in command.commands.items():
        yield from leaves(each, *path, name)


@pytest.mark.parametrize("command", list(leaves(main)), ids=" ".join)
def test_help_teaches(command: tuple[str, ...]) -> None:
    """Every command explains itself with an example."""
    done = call(*command, "--help")

    assert done.returncode == 0
    assert "Example:" in done.stdout


def test_it_is_a_module_too() -> None:
    """The package can be run as a module, and is the same program."""
    command = [sys.executable, "-m", "mongo_session_service", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("mongo-session-service ")
