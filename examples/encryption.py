"""Encrypt what users and agents say before it leaves the process, with a kept key.

The key is in a file that only you can read, made by the first run. Without it, what is
stored can never be read again: in production keep it where you keep secrets.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet
from google.adk.events import Event, EventActions
from pymongo import AsyncMongoClient

from mongo_session_service import MongoSessionService, Subject

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
KEY_FILE = Path(os.environ.get("SESSION_KEY_FILE", "session.key"))
KEY: dict[str, Any] = {"app_name": "clinic", "user_id": "ada", "session_id": "visit"}


def kept_key() -> bytes:
    if not KEY_FILE.exists():
        KEY_FILE.touch(mode=0o600)
        KEY_FILE.write_bytes(Fernet.generate_key())
    return KEY_FILE.read_bytes()


fernet = Fernet(kept_key())


def seal(value: Any, subject: Subject) -> Any:
    """Encrypt an event or a value of state, on its way to MongoDB."""
    return {"sealed": fernet.encrypt(json.dumps(value).encode()).decode()}


def unseal(value: Any, subject: Subject) -> Any:
    """Decrypt it on its way back; what was stored before there were hooks is plain."""
    if isinstance(value, dict) and "sealed" in value:
        return json.loads(fernet.decrypt(value["sealed"]))
    return value


async def main() -> None:
    # Collections of its own: who reads them needs the key, say to export them.
    async with MongoSessionService(
        URI, collection_prefix="sealed_", before_store=seal, after_load=unseal
    ) as service:
        session = await service.get_session(**KEY)
        if session is None:
            session = await service.create_session(**KEY, state={"visits": 0})
        delta = {"visits": session.state["visits"] + 1, "diagnosis": "influenza"}
        event = Event(author="nurse", actions=EventActions(state_delta=delta))
        await service.append_event(session, event)
        found = await service.get_session(**KEY)
        print("The app reads:", found and found.state)

        client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(URI)
        async with client:
            sessions = client[service.database_name]["sealed_sessions"]
            async for stored in sessions.find({"_id.session_id": "visit"}):
                print("MongoDB holds:", str(stored["state"]["diagnosis"])[:40], "...")


if __name__ == "__main__":
    asyncio.run(main())
