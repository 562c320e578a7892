"""What the README shows works as shown."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from google.adk.events import Event
from google.genai import types
from pymongo import MongoClient
from support.encryption_hooks import CANARY, clear_text, cluster_time

from mongo_session_service import MongoSessionService, Pruned

README = (Path(__file__).parents[2] / "README.md").read_text()
LOCAL = "mongodb://127.0.0.1:27017/"


def blocks(language: str) -> list[str]:
    """The code blocks of a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def example(about: str) -> str:
    """The one complete example that mentions something."""
    (code,) = (
        each for each in blocks("python") if "asyncio.run" in each and about in each
    )
    return code


def on_server(code: str, uri: str) -> str:
    """An example that uses this server."""
    return re.sub(re.escape(LOCAL) + r"[^\"]*", uri, code)


def run(code: str, uri: str) -> str:
    """What a complete example prints, in a process of its own, given a server."""
    code = on_server(code, uri)
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_examples_run(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The complete examples, given a server, store what they say and print it."""
    uri = mongodb_uri.replace("/?", f"/{database}?")

    def printed(about: str) -> str:
        exec(on_server(example(about), uri), {})  # noqa: S102  it is the project's own
        return capsys.readouterr().out

    assert "'user:city': 'Turin'" in run(example("list_sessions"), uri)
    assert admin[database].sessions.count_documents({"state.topic": "weather"}) == 1

    admin.drop_database(database)
    named, told = blocks("text")[:2]
    assert printed("update_session") == named
    assert printed("wait_for") == told
    for name in ("on_conflict", "fork_session"):
        assert printed(name) in blocks("text")
    (span,) = [text for text in blocks("text") if text.startswith("{'db.system")]
    traced = run(example("opentelemetry"), uri).replace(database, "adk")
    assert span.splitlines() == traced.splitlines()[-1:]


def test_sealed_data_is_not_in_clear(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """The example that encrypts prints what it stored, and stores nothing of it."""
    since = cluster_time(admin)
    code = example("before_store").replace("influenza", CANARY)
    code = code.replace("penicillin", CANARY).replace('"nurse"', f'"{CANARY}"')

    printed = run(code, mongodb_uri.replace("/?", f"/{database}?"))

    (expected,) = [text for text in blocks("text") if "influenza" in text]
    shown = expected.replace("influenza", CANARY).replace("penicillin", CANARY)
    assert printed == shown
    assert list(clear_text(admin, [database], since)) == []
    assert admin[database].user_states.count_documents({}) == 1


@pytest.mark.parametrize(
    ("about", "shown"),
    [("examine(service)", r"^MongoDB .* ms\.\n.*ok sessions "), ("read_nearby", "^1$")],
)
async def test_short_examples_run(
    mongodb_uri: str,
    database: str,
    capsys: pytest.CaptureFixture[str],
    about: str,
    shown: str,
) -> None:
    """They need no process of their own, and print what they are to tell."""
    uri = mongodb_uri.replace("/?", f"/{database}?")
    code = example(about).replace(f"{LOCAL}my_db?replicaSet=rs0", uri)

    await asyncio.to_thread(exec, code, {})

    assert re.search(shown, capsys.readouterr().out, re.DOTALL)


async def test_the_queries_find_what_they_name(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Each query shown for mongosh finds the document it is about."""
    state = {"topic": "weather", "user:city": "Turin"}
    session = await service.create_session(app_name="a", user_id="u", state=state)
    call = types.Part.from_function_call(name="get_weather", args={})
    content = types.Content(role="model", parts=[call])
    await service.append_event(session, Event(author="weather_agent", content=content))

    (queries,) = blocks("js")
    shown = re.findall(
        r"^db\.(\w+)\.find\(\{\"(.+?)\": \"(.+?)\"\}\)$", queries, re.MULTILINE
    )

    assert len(shown) == len(queries.splitlines())
    for collection, path, value in shown:
        query: dict[str, Any] = {path: value}
        assert admin[database][collection].count_documents(query) == 1, query


async def test_the_prune_runs(service: MongoSessionService) -> None:
    """The line that prunes does what its comment shows, and returns it."""
    (line,) = [code for code in blocks("python") if "service.prune(" in code]
    prune: dict[str, Any] = {}
    code = f"async def run(service):\n    {line}    return pruned"
    exec(code, prune)  # noqa: S102  it is the project's own

    assert await prune["run"](service) == Pruned()


async def test_the_erasure_runs(
    service: MongoSessionService, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines that erase do so, and print what their comment shows."""
    await service.create_session(app_name="my_app", user_id="ada", state={"user:k": 1})
    (code,) = [each for each in blocks("python") if "service.delete_user(" in each]
    erase: dict[str, Any] = {}
    exec(f"async def run(service):\n{indent(code, '    ')}", erase)  # noqa: S102

    await erase["run"](service)

    shown = code[code.index("Erased(") :].partition("(")[0]
    assert capsys.readouterr().out.startswith(f"{shown}(sessions=0, events=0, ")
    assert await service.get_user_state(app_name="my_app", user_id="ada") == {}


def test_what_the_guarantees_name_exists() -> None:
    """Each file the README refers to is there."""
    for link in re.findall(r"\]\(([a-zA-Z][^)#:]*)\)", README):
        assert (Path(__file__).parents[2] / link).exists(), link
