"""What the pages say of stored data, of tests and of errors is so."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from google.adk.events import Event
from google.genai import types
from pymongo import MongoClient
from support.doc_blocks import Reader, blocks_of
from support.encryption_hooks import CANARY, clear_text, cluster_time

from mongo_session_service import MongoSessionService
from mongo_session_service.schema.setup import COLLECTIONS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGE = ROOT / "mongo_session_service"
ELSEWHERE = {
    "Connection refused",
    "Invalid database URL format",
    "MongoClient background task encountered an error",
    "No matching distribution found for mongo-session-service",
    "No module named 'sqlalchemy'",
    "after_load failed with InvalidToken",
}
"""Messages of the driver, of ADK and of pip, and one that names another error."""


def test_sealed_data_is_not_in_clear(
    mongodb_uri: str, database: str, admin: MongoClient, tmp_path: Path
) -> None:
    """The example that encrypts prints what it stored, and stores nothing of it."""
    since = cluster_time(admin)
    secrets = re.compile('influenza|penicillin|(?<=author=")nurse')

    with Reader(mongodb_uri.replace("/?", f"/{database}?"), tmp_path) as reader:
        page = blocks_of(DOCS / "guide" / "encryption.md")
        for block in takewhile(lambda block: block.title != "keys.py", page):
            reader.follow(replace(block, text=secrets.sub(CANARY, block.text)))

    assert list(clear_text(admin, [database], since)) == []
    assert admin[database].user_states.count_documents({}) == 1


async def test_the_queries_find_what_they_name(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Each query shown for mongosh finds the document it is about."""
    state = {"topic": "weather", "user:city": "Turin"}
    session = await service.create_session(app_name="a", user_id="u", state=state)
    call = types.Part.from_function_call(name="get_weather", args={})
    content = types.Content(role="model", parts=[call])
    event = Event(author="weather_agent", content=content)
    event.error_code = "INVOCATION_ABORTED"
    await service.append_event(session, event)

    blocks = blocks_of(DOCS / "operations" / "mongodb.md")
    (queries,) = (block.text for block in blocks if block.language == "js")
    shown = re.findall(
        r"^db\.(\w+)\.find\(\{\"(.+?)\": \"(.+?)\"\}\)$", queries, re.MULTILINE
    )

    assert len(shown) == len(queries.splitlines())
    for collection, path, value in shown:
        query: dict[str, Any] = {path: value}
        assert admin[database][collection].count_documents(query) == 1, query


def promises() -> list[str]:
    """The sentences of the guarantees, as they are read."""
    page = (DOCS / "concepts" / "guarantees.md").read_text()
    page = page[page.index("## Writing") : page.index("## How it was tested")]
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    points = re.split(r"^(?:- |##.*$)", page, flags=re.MULTILINE)
    texts = [" ".join(point.split()) for point in points]
    return [
        it for text in texts if text for it in re.split(r"(?<=\.) (?=[A-Z`])", text)
    ]


def test_each_promise_names_its_tests() -> None:
    """Each sentence of the guarantees has its row, in order, and each test is there."""
    named = (ROOT / "tests" / "README.md").read_text().partition("## Modules")[0]
    rows = re.findall(r"^\| (?!promise)([A-Z].+?) \| (.+) \|$", named, re.MULTILINE)
    tests = {
        f"{path.name}::{node.name}"
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    begun = [
        sentence[: len(start)]
        for sentence, (start, _) in zip(promises(), rows, strict=False)
    ]

    assert begun == [start for start, _ in rows]
    assert len(promises()) == len(rows)
    for start, cell in rows:
        listed = {*re.findall(r"`(test_\w+\.py::\w+)`", cell)}
        assert listed, start
        assert listed - tests == set(), start


def test_the_files_that_contributors_are_sent_to_exist() -> None:
    """The places where changes are made are there, in the package or beside it."""
    pages = (DOCS / "architecture.md", ROOT / "CONTRIBUTING.md")
    text = "".join(page.read_text() for page in pages)
    named = set(re.findall(r"`([\w/]+/(?:\w+\.py)?)[`:]", text))

    missing = {each for each in named if not (PACKAGE / each).exists()}
    assert {each for each in missing if not (ROOT / each).exists()} == set()


def spelt(place: ast.AST) -> set[object]:
    """What a function or a definition names: arguments, attributes, whole strings."""
    nodes = [*ast.walk(place)]
    return {
        getattr(it, name, None) for it in nodes for name in ("arg", "attr", "value")
    }


def test_what_a_detail_takes_is_named() -> None:
    """Who adds a detail is sent to each file that spells two of them in one place."""
    page = (DOCS / "architecture.md").read_text()
    (row,) = re.findall(r"^\| add a detail .*$", page, re.MULTILINE)
    named = set(re.findall(r"`([\w/]+\.py)`", row))
    places = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Assign, ast.AnnAssign)

    spelling = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if "labels" in path.read_text()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, places) and spelt(node) >= {"title", "labels"}
    }

    assert named == spelling


def test_the_loggers_are_named() -> None:
    """Each part of the package that logs has its line on the page of logs."""
    page = (DOCS / "operations" / "observability.md").read_text()
    _, _, names = page.partition("Loggers are named")
    named = set(re.findall(r"^\| `(\w+)` \|", names, re.MULTILINE))

    logging = {
        path.relative_to(PACKAGE).with_suffix("").parts[0]
        for path in PACKAGE.rglob("*.py")
        if "logging.getLogger(__name__)" in path.read_text()
    }

    assert named == logging


def test_troubleshooting_quotes_real_messages() -> None:
    """Each text that readers search for is a message, of the package or of others."""
    page = (DOCS / "operations" / "troubleshooting.md").read_text()
    headings = [line for line in page.splitlines() if line.startswith("### ")]
    quoted = re.findall(r"`([^`]+)`", "".join(headings))
    sources = (path.read_text() for path in PACKAGE.rglob("*.py"))
    messages = re.sub(r'"\s+f?"', "", "".join(sources))

    parts = {part.strip(" .;") for text in quoted for part in text.split("...")}

    assert {
        part for part in parts - ELSEWHERE if part.strip("'") not in messages
    } == set()


def test_all_collections_are_removed() -> None:
    """The page that removes the package leaves none of its collections."""
    (removal,) = [
        block.text
        for block in blocks_of(DOCS / "operations" / "upgrading.md")
        if block.language == "js"
    ]
    assert tuple(re.findall(r'"(\w+)"', removal)) == COLLECTIONS
