"""A chat with a list of sessions and live updates: FastAPI, ADK and MongoDB.

Run it by ``python examples/fastapi_chat.py``, and open the page in two windows.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Body, Depends, FastAPI, Request
from fastapi.responses import FileResponse
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.genai import types
from scripted_model import ScriptedModel, text_of

from mongo_session_service import MongoSessionService
from mongo_session_service.http import add_error_handlers, sessions_router

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
APP = "chat"
PAGE = Path(__file__).with_suffix(".html")

# on_conflict="rebase": two windows may write to one session at the same time.
service = MongoSessionService(URI, on_conflict="rebase")
agent = LlmAgent(name="chat_agent", model=ScriptedModel())
runner = Runner(app_name=APP, agent=agent, session_service=service)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with service:  # fails here, before the first request, without a MongoDB
        yield


def current_user(request: Request) -> str:
    """Who asks. This believes a cookie; an app with a login checks it here."""
    return request.cookies.get("user", "ada")


def may(request: Request, *, app_name: str, user_id: str, **_: object) -> bool:
    """Users do what they like with their own sessions."""
    return (app_name, user_id) == (APP, current_user(request))


User = Annotated[str, Depends(current_user)]
Text = Annotated[str, Body(embed=True, min_length=1)]
app = FastAPI(lifespan=lifespan)
add_error_handlers(app)  # 404 for a session that is not there, and so on
app.include_router(sessions_router(service, authorize=may))


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(PAGE)


@app.get("/me")
async def me(user: User) -> dict[str, str]:
    """Whose sessions the page asks for."""
    return {"app_name": APP, "user_id": user}


@app.post("/sessions")
async def create_session(user: User, title: Text) -> dict[str, Any]:
    session = await service.create_session(app_name=APP, user_id=user, title=title)
    return {"id": session.id}


@app.post("/sessions/{session_id}/messages")
async def send(user: User, session_id: str, text: Text) -> dict[str, Any]:
    """Run a turn. Every window that shows the session receives its events.

    To show words as a model produces them, stream ADK's partial events from here: they
    are not stored, so the session's changes do not have them.
    """
    answer = ""
    async for event in runner.run_async(
        user_id=user, session_id=session_id, new_message=types.UserContent(text)
    ):
        if event.is_final_response():
            answer = text_of(event.content)
    return {"answer": answer}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=8000)
