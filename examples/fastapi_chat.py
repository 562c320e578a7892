"""A chat with live answers, versions of each message, and a list of conversations.

Run it by ``python examples/fastapi_chat.py``, and open the page in two windows. While
it answers, reload one, or press Stop in the other. Edit a message, or ask it again, and
both show the new version; the arrows beside ``2/2`` lead back to the first one.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import Body, Depends, FastAPI, Request
from fastapi.responses import FileResponse
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from scripted_model import CountingModel

from mongo_session_service import MongoSessionService
from mongo_session_service.http import add_error_handlers, sessions_router

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
PORT = int(os.environ.get("PORT", "8000"))
MODEL = os.environ.get("MODEL") or CountingModel()  # MODEL=gemini-2.5-flash, say
APP = "chat"

service = MongoSessionService(URI)
agent = LlmAgent(name="agent", model=MODEL)
runner = Runner(app_name=APP, agent=agent, session_service=service)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    # The service closes last: answers that are not finished then have ten seconds.
    async with service, asyncio.TaskGroup() as tasks:
        recovering = tasks.create_task(service.recover_turns(runner))
        yield
        recovering.cancel()


def current_user(request: Request) -> str:
    """Who asks. This believes a cookie; an app with a login checks it here."""
    return request.cookies.get("user", "ada")


def may(request: Request, *, app_name: str, user_id: str, **_: object) -> bool:
    """Users do what they like with their own sessions."""
    return (app_name, user_id) == (APP, current_user(request))


User = Annotated[str, Depends(current_user)]
app = FastAPI(lifespan=lifespan)
add_error_handlers(app)  # 404 for a session that is not there, and so on
app.include_router(sessions_router(service, authorize=may, runner=runner))


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(Path(__file__).with_suffix(".html"))


@app.get("/me")
async def me(user: User) -> dict[str, str]:
    """Whose sessions the page asks for."""
    return {"app_name": APP, "user_id": user}


@app.post("/sessions")
async def create_session(
    user: User, title: Annotated[str, Body(embed=True, min_length=1)]
) -> dict[str, str]:
    session = await service.create_session(app_name=APP, user_id=user, title=title)
    return {"id": session.id}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT)
