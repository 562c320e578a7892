"""Print every change in the database as it is committed, until Ctrl-C.

Start it in one terminal, and run other examples in a second one.
"""

import asyncio
import contextlib
import os

from mongo_session_service import MongoSessionService

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")


async def main() -> None:
    # watch(app, user) and watch(app, user, session) follow less than everything.
    async with MongoSessionService(URI) as service, service.watch() as changes:
        print(f"Watching database {service.database_name}. Ctrl-C stops it.")
        async for change in changes:
            where = "/".join(filter(None, change.session_key or (change.app_name,)))
            print(f"{change.kind:9}", where, change.state_delta or "")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
