"""A chat whose answers survive a reload, a second tab and a stop.

Run it by ``python examples/live_turns.py``, and open the page twice. While it answers,
reload one, press Stop in the other, or kill this process and start it again: then the
session goes on, but the unfinished answer is gone.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from scripted_model import CountingModel

from mongo_session_service import MongoSessionService
from mongo_session_service.http import add_error_handlers, sessions_router

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
PORT = int(os.environ.get("PORT", "8000"))
MODEL = os.environ.get("MODEL") or CountingModel()  # MODEL=gemini-2.5-flash, say

service = MongoSessionService(URI)
agent = LlmAgent(name="agent", model=MODEL)
runner = Runner(agent=agent, app_name="live_turns", session_service=service)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    # The service closes last: answers that are not finished then have ten seconds.
    async with service, asyncio.TaskGroup() as tasks:
        recovering = tasks.create_task(service.recover_turns(runner))
        yield
        recovering.cancel()


def may(request: Request, *, user_id: str, **_: object) -> bool:
    """This believes a cookie; an app with a login checks it here."""
    return user_id == request.cookies.get("user", "ada")


app = FastAPI(lifespan=lifespan)
add_error_handlers(app)
app.include_router(sessions_router(service, authorize=may, runner=runner))


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(Path(__file__).with_suffix(".html"))


@app.get("/mine")
async def mine(request: Request) -> str:
    """Where the user's sessions are."""
    user = quote(request.cookies.get("user", "ada"), safe="")
    return f"/apps/{runner.app_name}/users/{user}/sessions"


@app.post("/sessions")
async def create_session(request: Request) -> str:
    user = request.cookies.get("user", "ada")
    session = await service.create_session(app_name=runner.app_name, user_id=user)
    return session.id


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT)
