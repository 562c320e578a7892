"""What a process does with an earlier release of the package, beside this one.

Run by the tests as ``python -m support.two_releases URI DATABASE AUTHOR``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import mongo_session_service
from mongo_session_service import Change, MongoSessionService
from support.subscriptions import IDS, new_event

SESSIONS = [{**IDS, "session_id": f"s{number}"} for number in range(3)]
APPENDS = 40
"""To each session, by each release."""


async def write(uri: str, database: str, author: str) -> None:
    """Append to all sessions, half of the events within turns."""
    async with MongoSessionService(
        uri, database=database, on_conflict="rebase"
    ) as service:

        async def converse(key: dict[str, str]) -> None:
            for number in range(APPENDS):
                event = new_event(author, **{author: number, f"user_{author}": number})
                if number % 2:
                    await service.append(**key, event=event)
                else:
                    async with service.turn(**key) as session:
                        await service.append_event(session, event)

        await asyncio.gather(*map(converse, SESSIONS))


async def read(uri: str, database: str, consumer: str) -> dict[str, Any]:
    """Read what is stored, in each of the ways there are."""
    changes: list[Change] = []

    async def handle(change: Change) -> None:
        changes.append(change)

    async with MongoSessionService(uri, database=database) as service:
        found = [await service.get_session(**key) for key in SESSIONS]
        sessions = [each.model_dump(mode="json") for each in found if each]
        listed = await service.list_sessions(**IDS)
        async with service.consumer(consumer) as reader:
            await reader.run(handle, until_caught_up=True)
    return {
        "sessions": sessions,
        "listed": sorted(each.id for each in listed.sessions),
        "changes": sorted(f"{it.kind} {it.session_id} {it.revision}" for it in changes),
    }


async def _beside(uri: str, database: str, author: str) -> dict[str, Any]:
    await write(uri, database, author)
    sys.stdin.readline()  # until the other one has written, too
    found = await read(uri, database, author)
    return {"package": mongo_session_service.__file__, **found}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(_beside(*sys.argv[1:]))))
