"""A live list of a user's sessions, to rename and delete: FastAPI and MongoDB.

Run it by ``python examples/sidebar.py``, and open the page in two windows. All that the
list needs are the routes of the package; the page is sidebar.html.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.responses import FileResponse

from mongo_session_service import MongoSessionService
from mongo_session_service.http import sessions_router

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
PORT = int(os.environ.get("PORT", "8000"))
APP = "sidebar"
PAGE = Path(__file__).with_suffix(".html")

service = MongoSessionService(URI)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with service:  # fails here, before the first request, without a MongoDB
        yield


def current_user(request: Request) -> str:
    """Who asks. This believes a cookie; an app with a login checks it here."""
    return request.cookies.get("user", "ada")


def may(
    request: Request, *, app_name: str, user_id: str, action: str, **_: object
) -> bool:
    """Users list, read, rename and delete their own sessions, but fork none."""
    is_own = (app_name, user_id) == (APP, current_user(request))
    return is_own and action in {"list", "read", "update", "delete"}


app = FastAPI(lifespan=lifespan)
app.include_router(sessions_router(service, authorize=may))


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(PAGE)


@app.get("/me")
async def me(request: Request) -> dict[str, str]:
    """Whose sessions the page asks for."""
    return {"app_name": APP, "user_id": current_user(request)}


@app.post("/sessions")
async def create_session(
    request: Request,
    title: Annotated[str, Body(embed=True, min_length=1, max_length=1000)],
) -> dict[str, str]:
    user = current_user(request)
    session = await service.create_session(app_name=APP, user_id=user, title=title)
    return {"session_id": session.id}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT)
