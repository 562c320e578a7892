"""A model that answers from a script, and what it takes to talk to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, TypeAlias

from google.adk.events import Event
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, Session
from google.genai import types
from pydantic import Field
from pymongo import MongoClient

APP, USER = "state_app", "user1"

Turn: TypeAlias = str | list[types.Part] | list[LlmResponse]
"""How the model answers a request: a text, parts, or what it streams and the whole."""


class ScriptedModel(BaseLlm):
    """Answers the next request with the next turn of its script; never thinks."""

    model: str = "scripted"
    script: Sequence[Turn] = ()
    requests: list[LlmRequest] = Field(default_factory=list)
    is_streaming: bool = False

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002  ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the next turn; without ``stream`` only its last, whole response."""
        responses = _responses(self.script[len(self.requests)])
        self.requests.append(llm_request)
        self.is_streaming = stream
        for response in responses if stream else responses[-1:]:
            yield response


def _responses(turn: Turn) -> list[LlmResponse]:
    if isinstance(turn, str):
        turn = [types.Part(text=turn)]
    if parts := [part for part in turn if isinstance(part, types.Part)]:
        return [LlmResponse(content=types.Content(role="model", parts=parts))]
    return [response for response in turn if isinstance(response, LlmResponse)]


def call(tool: str, **args: Any) -> Turn:
    """A turn in which the model calls a tool."""
    return [types.Part.from_function_call(name=tool, args=args)]


def said(text: str) -> types.Content:
    """A message of the user's."""
    return types.UserContent(text)


def instruction_of(request: LlmRequest) -> list[str]:
    """The lines of the system instruction a model got."""
    assert isinstance(request.config.system_instruction, str)
    return request.config.system_instruction.splitlines()


def conversation_in(request: LlmRequest) -> list[str]:
    """The texts of the conversation a model got, whoever said them."""
    return [text for content in request.contents for text in texts_of(content)]


def texts_of(content: types.Content | None) -> list[str]:
    """The texts of a content's parts."""
    parts = (content and content.parts) or []
    return [part.text for part in parts if part.text]


async def ask(
    runner: Runner, session_id: str, message: str | types.Content, **options: Any
) -> list[Event]:
    """All events of one invocation."""
    running = runner.run_async(
        user_id=USER,
        session_id=session_id,
        new_message=said(message) if isinstance(message, str) else message,
        **options,
    )
    return [event async for event in running]


async def rewind(runner: Runner, session_id: str, turn: list[Event]) -> None:
    """Undo the invocation that made these events, and all later ones."""
    await runner.rewind_async(
        user_id=USER,
        session_id=session_id,
        rewind_before_invocation_id=turn[0].invocation_id,
    )


async def start(
    service: BaseSessionService, session_id: str, state: dict[str, Any] | None = None
) -> Session:
    """A new session of the user's."""
    return await service.create_session(
        app_name=APP, user_id=USER, session_id=session_id, state=state
    )


async def stored(service: BaseSessionService, session_id: str) -> Session:
    """A session of the user's as storage has it."""
    session = await service.get_session(
        app_name=APP, user_id=USER, session_id=session_id
    )
    assert session is not None
    return session


def folded(session: Session) -> dict[str, Any]:
    """The state that the whole log of a session adds up to."""
    state: dict[str, Any] = {}
    for event in session.events:
        state |= event.actions.state_delta
    return state


def documents(admin: MongoClient[Any], database: str) -> list[dict[str, Any]]:
    """Every document of every collection, read past the service."""
    collections = admin[database].list_collections()
    return [
        document
        for collection in collections
        for document in admin[database][collection["name"]].find()
    ]


def revisions(
    admin: MongoClient[Any], database: str, session_id: str
) -> tuple[int, list[int]]:
    """A session's revision, and those of its events in the order of the log."""
    session = admin[database].sessions.find_one({"_id.session_id": session_id})
    events = admin[database].events.find({"_id.session_id": session_id})
    assert session is not None
    return session["revision"], [
        event["_id"]["revision"] for event in events.sort("_id", 1)
    ]
