"""A support desk: customers ask an agent, and a colleague confirms its refunds."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from clerk import agent
from fastapi import FastAPI
from fastapi.responses import FileResponse
from google.adk.runners import Runner
from pymongo.asynchronous.client_session import AsyncClientSession

from mongo_session_service import Change, MongoSessionService
from mongo_session_service.http import (
    add_error_handlers,
    allow_everyone,
    sessions_router,
)

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
APP = "desk"
HERE = Path(__file__).parent

service = MongoSessionService(URI)
runner = Runner(app_name=APP, agent=agent, session_service=service)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    # The service closes last: answers that are not finished then have ten seconds.
    async with service, asyncio.TaskGroup() as tasks:
        recovering = tasks.create_task(service.recover_turns(runner))
        yield
        recovering.cancel()


app = FastAPI(lifespan=lifespan)
add_error_handlers(app)
app.include_router(sessions_router(service, authorize=allow_everyone, runner=runner))


@app.post("/customers/{user_id}")
async def open_conversation(user_id: str) -> str:
    session = await service.create_session(app_name=APP, user_id=user_id)
    return f"/apps/{APP}/users/{user_id}/sessions/{session.id}"


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(HERE / "desk.html")


@app.get("/inbox")
async def inbox() -> FileResponse:
    return FileResponse(HERE / "inbox.html")


@app.get("/waiting")
async def waiting() -> list[dict[str, Any]]:
    """What waits for a colleague, over all customers; the longest waiting first."""
    found = await service.find_sessions(app_name=APP, waiting=True, with_state=False)
    return [
        {
            "user": session.user_id,
            "path": f"/apps/{APP}/users/{session.user_id}/sessions/{session.id}",
            "id": call.call_id,
            "name": call.name,
            "revision": call.revision,
        }
        for session in found.sessions
        for call in session.waiting
    ]


async def book(change: Change, txn: AsyncClientSession) -> None:
    """Book each refund that was made, exactly once."""
    if change.is_copy:
        return
    refunds = txn.client[service.database_name]["refunds"]
    for given in change.event.get_function_responses() if change.event else []:
        response = given.response or {}
        if given.name == "refund" and "result" in response:
            booked = {"customer": change.user_id, **response}
            await refunds.insert_one(booked, session=txn)
