"""A server for the AI SDK's ``useChat``, whose answers a reloaded page resumes.

Run it by ``python examples/ai_sdk.py``; ai_sdk.jsx is a page.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from ai_sdk_stream import StoppedError, message_of, stream
from fastapi import FastAPI, Request, Response
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.runners import Runner
from google.genai import types
from scripted_model import CountingModel

from mongo_session_service import (
    MongoSessionService,
    RunningTurn,
    SessionKey,
    TurnInfo,
)

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
PORT = int(os.environ.get("PORT", "8000"))

service = MongoSessionService(URI)
agent = LlmAgent(name="agent", model=CountingModel())
runner = Runner(agent=agent, app_name="ai_sdk", session_service=service)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with service:
        yield


app = FastAPI(lifespan=lifespan)


def key_of(request: Request, session_id: str) -> SessionKey:
    """This believes a cookie; an app with a login asks it here."""
    return SessionKey(runner.app_name, request.cookies.get("user", "ada"), session_id)


@app.get("/api/chat/{session_id}")
async def stored(request: Request, session_id: str) -> list[dict[str, Any]]:
    """The messages so far; the last one's revision tells `resume` where to go on."""
    messages = []
    with suppress(SessionNotFoundError):
        log = service.iter_events(**key_of(request, session_id).id)
        async for revision, event in log:
            messages.append(message_of(event) | {"metadata": {"revision": revision}})
    return messages


@app.post("/api/chat")
async def send(request: Request, body: dict[str, Any]) -> Response:
    key = key_of(request, body["id"])
    with suppress(AlreadyExistsError):
        await service.create_session(**key.id)
    parts = body["messages"][-1]["parts"]
    text = " ".join(part["text"] for part in parts if part["type"] == "text")
    running = await service.start_turn(
        runner,
        user_id=key.user_id,
        session_id=key.session_id,
        new_message=types.UserContent(text),
        run_config=RunConfig(streaming_mode=StreamingMode.SSE),
    )
    return stream(events_of(running))


async def events_of(running: RunningTurn) -> AsyncIterator[Event]:
    async for event in running:
        yield event
    check_end(running.turn.info)


def check_end(turn: TurnInfo) -> None:
    """Raise an error if a turn was stopped, or has failed."""
    if turn.status == "stopped":
        raise StoppedError
    if turn.status in {"failed", "abandoned"}:
        raise RuntimeError(turn.reason or turn.error_type)


@app.get("/api/chat/{session_id}/stream")
async def resume(request: Request, session_id: str, after: int) -> Response:
    return stream(events_after(key_of(request, session_id), after))


async def events_after(key: SessionKey, after: int) -> AsyncIterator[Event]:
    """The events after a revision, to the end of the turn that runs, if one does."""
    async with service.watch(*key, after_revision=after, partials=True) as changes:
        turns = await service.find_turns(app_name=key.app_name, user_id=key.user_id)
        if not any(turn[:3] == key and turn.status != "abandoned" for turn in turns):
            async for _, event in service.iter_events(**key.id, after_revision=after):
                yield event
            return
        async for change in changes:
            if change.event:
                yield change.event
            elif change.turn and change.turn.status not in {"running", "stopping"}:
                check_end(change.turn)
                return


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT)
