"""What a user has said in one session is found in the next: memory that feeds itself.

Nobody calls the memory service (ADK's, of 2.13 and later): a consumer hands each answer
to it, with what led to it, and has it forget what is deleted or redacted.
"""

import asyncio
import os
from contextlib import suppress
from typing import Any

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.integrations.mongodb import MongoDbMemoryService
from google.genai import types
from pymongo import AsyncMongoClient

from mongo_session_service import Change, MongoSessionService, SessionKey

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
ADA: dict[str, Any] = {"app_name": "memory", "user_id": "ada"}

service = MongoSessionService(URI)
client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(URI)
database = client.get_default_database()
memory = MongoDbMemoryService(connection_string=URI, database_name=database.name)


async def remember(change: Change) -> None:
    """Keep the memory as the sessions are: the consumer's handler."""
    key, event = change.session_key, change.event
    if key is None or change.copied_by == "fork":
        return  # of a fork: remembered already, of the session where it was said
    if change.kind == "deleted":
        await database["memories"].delete_many(key.id)
    elif change.kind == "redacted" and event:
        await hand_over(key, [event])  # in the place of what it was
    elif change.kind == "appended" and change.revision and event and is_answer(event):
        await hand_over(key, await read_back(key, change.revision))


async def hand_over(key: SessionKey, events: list[Event]) -> None:
    await memory.add_events_to_memory(**key.id, events=events)


async def read_back(key: SessionKey, revision: int) -> list[Event]:
    """Read an answer, and what was said since the one before it."""
    said: list[Event] = []
    with suppress(SessionNotFoundError):  # it was deleted meanwhile
        async for _, event in service.iter_events(
            **key.id, before_revision=revision + 1, newest_first=True
        ):
            if said and is_answer(event):
                break
            said.append(event)
    return said[::-1]


def is_answer(event: Event) -> bool:
    has_said = bool(event.content and event.content.parts) or bool(event.error_code)
    return event.author != "user" and has_said and event.is_final_response()


async def recalled(query: str) -> list[str]:
    """What an agent's ``load_memory`` tool would find."""
    found = await memory.search_memory(**ADA, query=query)
    parts = [part for each in found.memories for part in each.content.parts or ()]
    return [str(part.text) for part in parts]


async def main() -> None:
    async with service, client:
        session = await service.create_session(**ADA)
        for author, text in ("user", "I live in Lisbon."), ("assistant", "Noted!"):
            content = types.Content(parts=[types.Part(text=text)])
            await service.append_event(session, Event(author=author, content=content))
        consumer = service.consumer("memory", app_name=ADA["app_name"])
        await consumer.run(remember, until_caught_up=True)
        print("Remembered:", await recalled("Lisbon"))
        await service.delete_session(**ADA, session_id=session.id)
        await consumer.run(remember, until_caught_up=True)
        print("When it is deleted:", await recalled("Lisbon"))
    await memory.close()


if __name__ == "__main__":
    asyncio.run(main())
