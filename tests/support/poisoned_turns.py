"""What a server does one of whose turns kills every process that runs it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.apps.app import ResumabilityConfig
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.genai import types

from mongo_session_service import MongoSessionService
from mongo_session_service.testing import Limits

APP, USER = "app", "user"
POISON = "poison"
LIMITS = Limits(lease_seconds=1.5, lease_renewal_seconds=0.3, recovery_seconds=0.1)
DEAD = 9
"""The exit code of a process that was killed."""


class Model(BaseLlm):
    """Calls a tool first; to ``POISON`` it knows no other answer."""

    model: str = "scripted"

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002  ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield a call, or an answer that takes a while."""
        parts = [part for it in llm_request.contents for part in it.parts or []]
        is_poison = any(part.text == POISON for part in parts)
        if is_poison:
            answer = types.Part.from_function_call(name="explode", args={})
        elif any(part.text == "wait" for part in parts) and len(parts) == 1:
            answer = types.Part.from_function_call(name="wait", args={})
        else:
            await asyncio.sleep(0.5)
            answer = types.Part(text="answered")
        yield LlmResponse(content=types.Content(role="model", parts=[answer]))


def runner_of(service: MongoSessionService, *, others: int = 0) -> Runner:
    """A runner whose poison works once so many others are in their tools."""
    waiting = 0
    all_wait = asyncio.Event()

    async def wait() -> None:
        nonlocal waiting
        waiting += 1
        if waiting == others:
            all_wait.set()
        await asyncio.Event().wait()

    async def explode() -> None:
        if others:
            await all_wait.wait()
        os._exit(DEAD)

    agent = LlmAgent(name="agent", model=Model(model="scripted"), tools=[wait, explode])
    app = App(
        name=APP,
        root_agent=agent,
        resumability_config=ResumabilityConfig(is_resumable=True),
    )
    return Runner(app=app, session_service=service)


def begin(uri: str, database: str, sessions: list[str]) -> None:
    """Start a turn in each session, and die of one."""
    asyncio.run(_begin(uri, database, sessions))


async def _begin(uri: str, database: str, sessions: list[str]) -> None:
    async with MongoSessionService(uri, database=database, _limits=LIMITS) as service:
        runner = runner_of(service, others=len(sessions) - 1)
        for name in sessions:
            await service.create_session(app_name=APP, user_id=USER, session_id=name)
            message = types.UserContent(POISON if name == POISON else "wait")
            await service.start_turn(
                runner, user_id=USER, session_id=name, new_message=message
            )
        await asyncio.Event().wait()


def recover(uri: str, database: str) -> None:
    """Recover turns until none is left."""
    asyncio.run(_recover(uri, database))


async def _recover(uri: str, database: str) -> None:
    async with MongoSessionService(uri, database=database, _limits=LIMITS) as service:
        recovering = asyncio.create_task(
            service.recover_turns(runner_of(service), resume=True)
        )
        while await service.find_turns(app_name=APP):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        recovering.cancel()
