"""Keep a session in MongoDB: run this twice, and the second run remembers the first."""

import asyncio
import os
from typing import Any

from google.adk.events import Event, EventActions

from mongo_session_service import MongoSessionService, StorageError

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
ADA: dict[str, Any] = {"app_name": "my_app", "user_id": "ada", "session_id": "one"}


async def main() -> None:
    async with MongoSessionService(URI) as service:
        session = await service.get_session(**ADA)
        if session is None:
            session = await service.create_session(**ADA)
        runs = session.state.get("runs", 0) + 1
        actions = EventActions(state_delta={"runs": runs})
        await service.append_event(session, Event(author="me", actions=actions))
        print(f"Run {runs}. Events stored: {len(session.events)}.")


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except StorageError as error:  # no server, or no login
        raise SystemExit(f"{error}") from None
