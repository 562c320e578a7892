"""Write all sessions to a JSON Lines file, and read it back.

The export is in clear and without loss: imported elsewhere and exported again, it is
the same file.
"""

import argparse
import asyncio
import os

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import JsonLinesSource, StoreSource, export, verify

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")


async def main(path: str) -> None:
    async with MongoSessionService(URI) as service, StoreSource(service) as source:
        exported = await export(source, path)
        print(f"{path}: sessions {exported.sessions}, events {exported.events}.")
        async with JsonLinesSource(path) as lines:
            verified = await verify(lines, source, on_difference=print)
        print(f"Read back, and compared. Different: {verified.differences}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", default="sessions.jsonl.gz")
    asyncio.run(main(parser.parse_args().path))
