#!/usr/bin/env python3
"""Measure how fast sessions move in, are verified and exported, and in what memory.

Fills an SQLite file as ADK's DatabaseSessionService would, and moves it into a MongoDB
of its own, started for the purpose. Two rounds, the second ten times the size: the
memory stays the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Any

WORDS = "An answer of ordinary length, about the weather in Lisbon. " * 3


async def fill(path: Path, sessions: int, events: int) -> None:
    """Let ADK's service make the file, and copy one event of its as often as asked."""
    from google.adk.events import Event, EventActions
    from google.adk.sessions import DatabaseSessionService
    from google.genai import types

    service = DatabaseSessionService(f"sqlite+aiosqlite:///{path}")
    session = await service.create_session(app_name="a", user_id="u", session_id="x")
    call = types.FunctionCall(name="get_weather", args={"city": "Lisbon", "days": 2})
    parts = [types.Part(text=WORDS), types.Part(function_call=call)]
    event = Event(
        id="one-of-many",
        author="agent",
        content=types.Content(role="model", parts=parts),
        actions=EventActions(state_delta={"topic": "weather"}),
    )
    await service.append_event(session, event)
    await service.close()
    with sqlite3.connect(path) as file:
        file.row_factory = sqlite3.Row
        for table, count in (("sessions", sessions), ("events", sessions * events)):
            row = dict(file.execute(f"SELECT * FROM {table}").fetchone())
            insert = f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})"
            file.executemany(insert, (copy(row, n, events) for n in range(count)))
    file.close()


def copy(row: dict[str, Any], number: int, events: int) -> tuple[Any, ...]:
    """A row under an id of its own."""
    if "event_data" not in row:
        return tuple((row | {"id": f"s{number}"}).values())
    data = json.loads(row["event_data"]) | {"id": f"e{number}"}
    ids = {"id": f"e{number}", "session_id": f"s{number // events}"}
    return tuple((row | ids | {"event_data": json.dumps(data)}).values())


async def measure(uri: str, folder: Path, sessions: int, events: int) -> None:
    """Move one file, and print the rates."""
    from mongo_session_service import MongoSessionService
    from mongo_session_service.transfer import (
        SqlSource,
        StoreSource,
        export,
        move,
        verify,
    )

    path = folder / f"{sessions}.db"
    await fill(path, sessions, events)
    async with (
        MongoSessionService(uri, database=f"bench_{sessions}") as service,
        SqlSource(f"sqlite:///{path}") as source,
        StoreSource(service) as target,
    ):
        for what, work in (
            ("moved in", lambda: move(source, service)),
            ("moved again", lambda: move(source, service)),
            ("verified", lambda: verify(source, target)),
            ("exported", lambda: export(target, folder / "out.jsonl.gz")),
        ):
            started = time.perf_counter()
            await work()
            rate = sessions * events / (time.perf_counter() - started)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(f"{what:12}{rate:8,.0f} events/s   peak memory {peak:4.0f} MB")


def main() -> None:
    """Measure two sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=100, help="in the first round")
    parser.add_argument("--events", type=int, default=100, help="of each session")
    arguments = parser.parse_args()
    from mongo_session_service.embedded import EmbeddedReplicaSet

    with EmbeddedReplicaSet() as mongodb, tempfile.TemporaryDirectory() as folder:
        for sessions in (arguments.sessions, 10 * arguments.sessions):
            print(f"{sessions} sessions of {arguments.events} events:")
            work = measure(mongodb.uri, Path(folder), sessions, arguments.events)
            asyncio.run(work)


if __name__ == "__main__":
    main()
