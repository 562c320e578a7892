"""An inbox of what waits for a person, over all users of an app: FastAPI, ADK, MongoDB.

Run it by ``python examples/inbox.py``, order something, and confirm it in another
window. The page is inbox.html; a real one would ask who you are.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI
from fastapi.responses import FileResponse, StreamingResponse
from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from scripted_model import ScriptedModel, text_of

from mongo_session_service import MongoSessionService

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
APP = "inbox"


def ship(order: str) -> str:
    """Ships what was ordered; a person has to confirm it first."""
    return f"shipped {order}"


service = MongoSessionService(URI)
tool = FunctionTool(ship, require_confirmation=True)
agent = LlmAgent(name="clerk", model=ScriptedModel(), tools=[tool])
runner = Runner(app_name=APP, agent=agent, session_service=service)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with service:
        yield


app = FastAPI(lifespan=lifespan)
Text = Annotated[str, Body()]


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(Path(__file__).with_suffix(".html"))


@app.get("/inbox")
async def inbox() -> list[dict[str, Any]]:
    """All that waits, with what is asked: that is in the event of the call."""
    waiting = []
    found = await service.find_sessions(app_name=APP, waiting=True, with_state=False)
    for session in found.sessions:
        key: dict[str, Any] = {"user_id": session.user_id, "session_id": session.id}
        for call in session.waiting:
            log = service.iter_events(
                app_name=APP, **key, after_revision=call.revision - 1, limit=1
            )
            async for _, event in log:
                calls = {each.id: each.args for each in event.get_function_calls()}
                asked = calls[call.call_id] or {}
                args = asked["originalFunctionCall"]["args"]
                waiting.append({**key, "call_id": call.call_id, "asked": args})
    return waiting


@app.get("/inbox/changes")
async def changes() -> StreamingResponse:
    """Tells that something waits, or waits no more."""

    async def told() -> AsyncIterator[str]:
        async with service.watch(APP) as changes:
            yield ": open\n\n"
            async for change in changes:
                if change.waiting is not None or change.kind == "deleted":
                    yield f"data: {json.dumps(change.session_id)}\n\n"

    return StreamingResponse(told(), media_type="text/event-stream")


@app.post("/orders")
async def order(user_id: Text, text: Text) -> None:
    session = await service.create_session(app_name=APP, user_id=user_id)
    message = types.UserContent(text)
    await service.start_turn(
        runner, user_id=user_id, session_id=session.id, new_message=message
    )


@app.post("/answers")
async def answer(
    user_id: Text, session_id: Text, call_id: Text, confirmed: Annotated[bool, Body()]
) -> str:
    """Answers a call; the agent goes on, and what it says is returned."""
    response = types.FunctionResponse(
        id=call_id, name="adk_request_confirmation", response={"confirmed": confirmed}
    )
    message = types.UserContent(types.Part(function_response=response))
    running = await service.start_turn(
        runner, user_id=user_id, session_id=session_id, new_message=message
    )
    return text_of((await running.result())[-1].content)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=8000)
