"""Search in conversations: a consumer feeds a text index, and forgets what is gone.

Each run stores a conversation, finds a word in it, deletes it, and finds it no more.
"""

import asyncio
import math
import os
from contextlib import suppress
from typing import Any

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.genai import types
from pymongo import AsyncMongoClient

from mongo_session_service import Change, MongoSessionService, SessionKey

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
ADA: dict[str, Any] = {"app_name": "search", "user_id": "ada"}

service = MongoSessionService(URI)
client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(URI)
database = client.get_default_database()
texts = database["texts"]  # a document per event, with the event's _id


async def handle(change: Change) -> None:
    """Keep the texts as the sessions are: the consumer's handler."""
    key = change.session_key
    if key is None:
        return  # state that sessions share
    if change.copied_by == "fork":
        return  # found already, in the session where it was said
    if change.kind == "appended" and change.event and change.revision:
        await keep(key, change.revision, change.event)
    elif change.kind == "redacted" and change.event:
        await texts.delete_many(of_log(key) | {"event_id": change.event.id})
    elif change.kind == "deleted":
        await texts.delete_many(of_log(key))
        copies = database["events"].find(
            of_log(key) | {"copied_by": "fork"}, {"_id": 1}
        )
        copied = {each["_id"]["revision"] async for each in copies}
        with suppress(SessionNotFoundError):  # unless there is a new one of this id
            async for revision, event in service.iter_events(**key.id):
                if revision not in copied:
                    await keep(key, revision, event)


async def keep(key: SessionKey, revision: int, event: Event) -> None:
    parts = (event.content and event.content.parts) or []
    found = [it.text for it in parts if it.text and not it.thought]
    spoken = (event.input_transcription, event.output_transcription)
    text = " ".join(found + [it.text for it in spoken if it and it.text])
    if text:
        id_ = {**key.id, "revision": revision}
        said = {"event_id": event.id, "author": event.author, "text": text}
        await texts.replace_one({"_id": id_}, {**key.id, **said}, upsert=True)


def of_log(key: SessionKey, until: float = math.inf) -> dict[str, Any]:
    first, last = ({**key.id, "revision": it} for it in (0, until))
    return {"_id": {"$gte": first, "$lte": last}}


async def update() -> None:
    """Take in what is new, and forget what is gone."""
    await texts.create_index(
        [("app_name", 1), ("user_id", 1), ("text", "text")],
        default_language="none",
    )
    consumer = service.consumer("search", app_name=ADA["app_name"])
    await consumer.run(handle, until_caught_up=True)
    # Consumers are not told of a trim; the session says where its log begins since.
    trimmed = {"log_begins": {"$gt": 0}, "revision": {"$exists": True}}
    async for session in database["sessions"].find(trimmed, {"log_begins": 1}):
        key = SessionKey(**session["_id"])
        await texts.delete_many(of_log(key, until=session["log_begins"]))


async def search(app_name: str, user_id: str, words: str) -> list[dict[str, Any]]:
    """Find what was said in a user's sessions, the best first."""
    whose = {"app_name": app_name, "user_id": user_id}
    score = {"score": {"$meta": "textScore"}}
    found = texts.find(whose | {"$text": {"$search": words}}, score)
    return await found.sort(score).limit(20).to_list()


async def main() -> None:
    async with service, client:
        session = await service.create_session(**ADA)
        for text in ("I live in Lisbon.", "Good to know!"):
            event = Event(author="x", content=types.UserContent(text))
            await service.append_event(session, event)
        await update()
        print("Found:", [each["text"] for each in await search(**ADA, words="lisbon")])
        await service.delete_session(**ADA, session_id=session.id)
        await update()
        print("When it is deleted:", await search(**ADA, words="lisbon"))


if __name__ == "__main__":
    asyncio.run(main())
