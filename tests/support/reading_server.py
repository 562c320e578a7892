"""A process that serves the sessions of a database to everybody.

Its arguments are the URI and the database. It prints its port once it listens.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys

from mongo_session_service import MongoSessionService
from support.http_paths import app_of
from support.http_server import serving


async def serve(uri: str, database: str) -> None:
    """Serve until standard input is closed; what is logged goes to stderr."""
    logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
    logging.getLogger("mongo_session_service").setLevel(logging.INFO)
    async with MongoSessionService(uri, database=database) as service:
        # As it is once it has served something.
        await service.list_sessions(app_name="app", user_id="user")
        gc.freeze()  # as docs/operations/deploying.md has it
        async with serving(app_of(service), log_level="warning") as url:
            print(url, flush=True)  # noqa: T201  for the process that reads it
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
