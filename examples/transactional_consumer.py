"""A consumer whose own writes are committed together with its position: exactly once.

Each run appends three events and bills for each. However often a run is killed, the
bill is for as many events as there are.
"""

import asyncio
import os
from typing import Any

from google.adk.events import Event

from mongo_session_service import Change, MongoSessionService

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
KEY = {"app_name": "billed", "user_id": "ada", "session_id": "monday"}


async def main() -> None:
    async with MongoSessionService(URI) as service:
        session = await service.get_session(**KEY)
        if session is None:
            session = await service.create_session(**KEY)
        for _ in range(3):
            await service.append_event(session, Event(author="me"))
        last = len(session.events)

        async def bill(change: Change, txn: Any) -> None:
            if change.kind == "appended":
                # A write is part of the transaction because of session=txn.
                bills = txn.client[service.database_name]["bills"]
                await bills.update_one(
                    {"_id": change.user_id},
                    {"$inc": {"events": 1}},
                    upsert=True,
                    session=txn,
                )
                print("billing event", change.revision)
            if change.revision == last:
                await consumer.close()  # a worker would go on

        async with service.consumer("billing", app_name="billed") as consumer:
            await consumer.run(bill, transactional=True)
    print(f"All {last} events are billed.")


if __name__ == "__main__":
    asyncio.run(main())
