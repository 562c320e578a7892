"""Tokens per user and day: a consumer sums them exactly once, and BI reads a view.

Each run adds two answers of 120 tokens. However often it is killed, the sum is right.
"""

import asyncio
import os
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from google.adk.events import Event
from google.genai import types
from pymongo import AsyncMongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import CollectionInvalid

from mongo_session_service import Change, MongoSessionService

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
ADA: dict[str, Any] = {"app_name": "metered", "user_id": "ada"}
COUNTS = {
    "input_tokens": "prompt_token_count",
    "cached_tokens": "cached_content_token_count",
    "output_tokens": "candidates_token_count",
    "thought_tokens": "thoughts_token_count",
    "total_tokens": "total_token_count",
}
VIEW = [  # a row with plain columns
    {"$replaceWith": {"$mergeObjects": ["$_id", "$$ROOT"]}},
    {"$unset": "_id"},
]

service = MongoSessionService(URI)


async def count(change: Change, txn: AsyncClientSession) -> None:
    """Add the tokens of an answer; `session=txn` makes it a part of the commit."""
    if change.kind != "appended" or not (change.event and change.event.usage_metadata):
        return
    if change.copied_by == "fork":
        return  # counted already, in the session where it was said
    now = datetime.fromtimestamp(change.time, UTC)
    used = change.event.usage_metadata
    spent = {name: getattr(used, field) or 0 for name, field in COUNTS.items()}
    id_ = {
        "app_name": change.app_name,
        "user_id": change.user_id,
        "day": datetime(now.year, now.month, now.day, tzinfo=UTC),
        "model": change.event.model_version or "unknown",
        "imported": change.copied_by == "import",
    }
    usage = txn.client[service.database_name]["usage"]
    added = {"$inc": {"answers": 1, **spent}}
    await usage.update_one({"_id": id_}, added, upsert=True, session=txn)


async def main() -> None:
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(URI)
    async with service, client:
        database = client[service.database_name]
        with suppress(CollectionInvalid):  # it is there already
            await database.create_collection(
                "usage_by_day", viewOn="usage", pipeline=VIEW
            )
        session = await service.create_session(**ADA)
        for _ in range(2):
            tokens = types.GenerateContentResponseUsageMetadata(
                prompt_token_count=100,
                candidates_token_count=20,
                total_token_count=120,
            )
            event = Event(author="agent", usage_metadata=tokens)
            await service.append_event(session, event)

        consumer = service.consumer("usage", app_name=ADA["app_name"])
        await consumer.run(count, transactional=True, until_caught_up=True)
        async for row in database["usage_by_day"].find(ADA):
            print(f"{row['user_id']}: {row['answers']} answers, {row['total_tokens']}")


if __name__ == "__main__":
    asyncio.run(main())
