"""ADK's own routes on durable turns, for a front end that is written for ADK's server.

Run it by ``python examples/adk_server.py``; google_adk.jsx is a page.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI, Request
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from scripted_model import CountingModel

from mongo_session_service import MongoSessionService
from mongo_session_service.http import adk_router, sessions_router

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
PORT = int(os.environ.get("PORT", "8000"))

service = MongoSessionService(URI)
agent = LlmAgent(name="agent", model=CountingModel())
runner = Runner(agent=agent, app_name="chat", session_service=service)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with service:
        yield


def may(request: Request, *, user_id: str, **_: object) -> bool:
    """This believes a cookie; an app with a login checks it here."""
    return user_id == request.cookies.get("user", "ada")


app = FastAPI(lifespan=lifespan)
app.include_router(adk_router(service, authorize=may, runners={"chat": runner}))
app.include_router(sessions_router(service, authorize=may), prefix="/live")

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT)
