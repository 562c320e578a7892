"""What a user has said in one session is found in the next: memory that feeds itself.

Nobody calls the memory service. A consumer hands each turn over once it is finished. It
begins with the whole log, so a second run remembers what was said in the first.
"""

import asyncio
import os
import uuid
from typing import Any

from google.adk.events import Event
from google.adk.memory import InMemoryMemoryService
from google.genai import types

from mongo_session_service import MongoSessionService
from mongo_session_service.memory import remember

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
ADA: dict[str, Any] = {"app_name": "memory", "user_id": "ada"}
TURN = [("user", "I live in Lisbon."), ("assistant", "Good to know!")]


async def main() -> None:
    memory = InMemoryMemoryService()
    async with MongoSessionService(URI) as service:
        await talk(service)
        # This memory starts empty, so its consumer has a new name, and begins with the
        # log. For one that keeps what it gets, use the same name each time.
        consumer = service.consumer(f"memory-{uuid.uuid4()}", app_name="memory")
        feeding = asyncio.create_task(consumer.run(remember(memory)))
        said = len((await service.list_sessions(**ADA)).sessions)
        async with asyncio.timeout(60):
            while len(found := await recalled(memory, "Lisbon")) < said:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        print(f"Sessions: {said}. Remembered: {found}.")
        await consumer.close()
        await feeding


async def talk(service: MongoSessionService) -> None:
    """What a Runner would append: the user's message, and the agent's answer."""
    session = await service.create_session(**ADA)
    for author, text in TURN:
        content = types.Content(parts=[types.Part(text=text)])
        event = Event(author=author, invocation_id="turn-1", content=content)
        await service.append_event(session, event)


async def recalled(memory: InMemoryMemoryService, query: str) -> list[str]:
    """What an agent's ``load_memory`` tool would find."""
    found = await memory.search_memory(**ADA, query=query)
    parts = [part for each in found.memories for part in each.content.parts or ()]
    return [str(part.text) for part in parts]


if __name__ == "__main__":
    asyncio.run(main())
