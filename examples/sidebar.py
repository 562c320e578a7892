"""A live list of a user's sessions, to rename and delete: FastAPI and MongoDB.

Run it by ``python examples/sidebar.py``, and open the page in two windows. All that the
list needs is one route of the package; the page is sidebar.html.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.responses import FileResponse

from mongo_session_service import MongoSessionService
from mongo_session_service.http import changes_route

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
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


app = FastAPI(lifespan=lifespan)


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(PAGE)


@app.get("/me")
async def me(request: Request) -> dict[str, str]:
    """What the page asks /changes for."""
    return {"app_name": APP, "user_id": current_user(request)}


@app.post("/sessions")
async def create_session(
    request: Request,
    title: Annotated[str, Body(embed=True, min_length=1, max_length=1000)],
) -> dict[str, str]:
    user = current_user(request)
    session = await service.create_session(app_name=APP, user_id=user, title=title)
    return {"session_id": session.id}


def may_read(request: Request, key: Any) -> bool:
    """Users read their own sessions."""
    return (key.app_name, key.user_id) == (APP, current_user(request))


def may_list(request: Request, app_name: str, user_id: str) -> bool:
    """They list them, and receive what happens to them."""
    return (app_name, user_id) == (APP, current_user(request))


def may_write(request: Request, key: Any, action: str) -> bool:
    """They rename and delete them, but fork none. Asked after ``may_read``."""
    return action in {"update", "delete"}


app.router.routes.append(
    changes_route(
        service,
        authorize=may_read,
        authorize_user=may_list,
        authorize_write=may_write,
    )
)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=8000)
