"""Move the sessions of ADK's DatabaseSessionService to MongoDB, and compare them.

Run it while the old store is in use, and once more after the switch: a second run moves
only what is new. Without an argument, it makes a small SQLite store to move.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from google.adk.events import Event
from google.adk.sessions import DatabaseSessionService

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import SqlSource, StoreSource, move, verify

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")


async def main(sql_url: str | None) -> int:
    if sql_url is None:
        sql_url = await example_store()
    async with (
        MongoSessionService(URI) as service,
        SqlSource(sql_url) as source,
        StoreSource(service) as target,
    ):
        moved = await move(source, service)
        print(f"Sessions in MongoDB: {moved.sessions}. Events moved: {moved.events}.")
        verified = await verify(source, target, on_difference=print)
        print(f"Compared: {verified.events}. Different: {verified.differences}.")
        return 0 if verified.is_equal else 1


async def example_store() -> str:
    """The URL of a store with one session, made if it is not there yet."""
    path = Path(tempfile.gettempdir()) / "old_adk_sessions.db"
    url = f"sqlite+aiosqlite:///{path}"
    if not path.exists():
        async with DatabaseSessionService(url) as old:
            session = await old.create_session(app_name="moved", user_id="ada")
            for _ in range(3):
                await old.append_event(session, Event(author="me"))
    return url


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "sql_url",
        nargs="?",
        help="as for DatabaseSessionService; postgresql://..., say",
    )
    sys.exit(asyncio.run(main(parser.parse_args().sql_url)))
