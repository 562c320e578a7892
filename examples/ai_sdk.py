"""A server for the AI SDK's ``useChat``, whose answers a reloaded page resumes.

Run it by ``python examples/ai_sdk.py``; the transport's ``api`` is ``/api/chat``.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode  # type: ignore[attr-defined]
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from google.adk.runners import Runner
from google.genai import types
from scripted_model import CountingModel

from mongo_session_service import Change, MongoSessionService
from mongo_session_service.http import add_error_handlers

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
add_error_handlers(app)


def user_of(request: Request) -> str:
    """This believes a cookie; an app with a login asks it here."""
    return request.cookies.get("user", "ada")


@app.post("/api/chat")
async def send(request: Request, body: dict[str, Any]) -> Response:
    ids = {"user_id": user_of(request), "session_id": body["id"]}
    with suppress(AlreadyExistsError):
        await service.create_session(app_name=runner.app_name, **ids)
    parts = body["messages"][-1]["parts"]
    text = " ".join(part["text"] for part in parts if part["type"] == "text")
    running = await service.start_turn(
        runner,
        **ids,
        new_message=types.UserContent(text),
        run_config=RunConfig(streaming_mode=StreamingMode.SSE),
    )
    return stream(aiter(running))


@app.get("/api/chat/{session_id}/stream")
async def resume(request: Request, session_id: str) -> Response:
    user = user_of(request)
    async with AsyncExitStack() as stack:
        watching = service.watch(runner.app_name, user, session_id, partials=True)
        changes = await stack.enter_async_context(watching)
        turns = await service.find_turns(app_name=runner.app_name, user_id=user)
        if any(turn.session_id == session_id for turn in turns):
            return stream(events_of(changes, stack.pop_all()))
    return Response(status_code=204)  # there is nothing to resume


async def events_of(
    changes: AsyncIterator[Change], stack: AsyncExitStack
) -> AsyncIterator[Event]:
    async with stack:
        async for change in changes:
            if change.kind in {"partial", "appended"} and change.event:
                yield change.event
            elif change.turn and change.turn.status not in {"running", "stopping"}:
                return


def stream(events: AsyncIterator[Event]) -> Response:
    return StreamingResponse(
        (f"data: {chunk}\n\n" async for chunk in chunks(events)),
        media_type="text/event-stream",
        headers={"x-vercel-ai-ui-message-stream": "v1"},
    )


async def chunks(events: AsyncIterator[Event]) -> AsyncIterator[str]:
    """The AI SDK's stream of a message: a text for each event of the agent's."""
    yield json.dumps({"type": "start"})
    said: dict[str, int] = {}
    async for event in events:
        parts = (event.content and event.content.parts) or []
        text = "".join(it.text for it in parts if it.text and not it.thought)
        if event.author == "user" or not text:
            continue
        if event.id not in said:
            said[event.id] = 0
            yield json.dumps({"type": "text-start", "id": event.id})
        new = text if event.partial else text[said[event.id] :]  # an event is whole
        said[event.id] += len(new)
        yield json.dumps({"type": "text-delta", "id": event.id, "delta": new})
        if not event.partial:
            yield json.dumps({"type": "text-end", "id": event.id})
    yield json.dumps({"type": "finish"})
    yield "[DONE]"


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=PORT)
