"""A server of AG-UI's for agents, in front of our service: a process of its own.

It runs where ``ag-ui-adk`` is installed, with the arguments URI, DATABASE, PORT and
MODE: ``rebase``, ``raise`` or
``turns``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress

import uvicorn
from ag_ui.core import RunAgentInput
from ag_ui_adk import ADKAgent, AGUIToolset, create_adk_app
from fastapi import Depends
from google.adk.agents import LlmAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types
from pymongo import AsyncMongoClient

from mongo_session_service import MongoSessionService
from support.command_log import CommandsSent

APP, USER = "my_app", "ada"


class Model(BaseLlm):
    """Asks for approval before it deletes anything, counts, and repeats all else."""

    model: str = "fake"

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002  ADK's
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield one whole answer, which says how much of the chat was seen.

        Only what it counts comes in pieces: a number every tenth of a second, to 40.
        """
        last = llm_request.contents[-1].parts[-1]
        if last.text and last.text.startswith("count"):
            numbers = [f"{number} " for number in range(1, 41)]
            for text in numbers:
                yield LlmResponse(content=types.ModelContent(text), partial=True)
                await asyncio.sleep(0.1)
            yield LlmResponse(content=types.ModelContent("".join(numbers)))
            return
        if last.function_response:
            answer = types.Part(text=f"heard {last.function_response.response}")
        elif last.text.startswith("delete"):
            arguments = {"what": last.text.partition(" ")[2]}
            answer = types.Part.from_function_call(name="approve", args=arguments)
        else:
            answer = types.Part(text=f"{last.text} after {len(llm_request.contents)}")
        yield LlmResponse(content=types.Content(role="model", parts=[answer]))


async def main(uri: str, database: str, port: int, mode: str) -> None:
    """Serve until the process is ended."""
    log = CommandsSent()
    async with AsyncMongoClient(uri, event_listeners=[log]) as client:
        service = MongoSessionService(
            client=client,
            database=database,
            on_conflict="rebase" if mode == "rebase" else "raise",
        )
        agent = ADKAgent(
            adk_agent=LlmAgent(name="agent", model=Model(), tools=[AGUIToolset()]),
            app_name=APP,
            user_id=USER,
            session_service=service,
            use_thread_id_as_session_id=True,
        )

        async def in_turn(input_data: RunAgentInput) -> AsyncGenerator[None, None]:
            """Hold the turn of the thread's session until the answer is sent."""
            key = {"app_name": APP, "user_id": USER, "session_id": input_data.thread_id}
            async with AsyncExitStack() as stack:
                try:
                    await stack.enter_async_context(service.turn(**key))
                except SessionNotFoundError:
                    with suppress(AlreadyExistsError):
                        await service.create_session(**key)
                    await stack.enter_async_context(service.turn(**key))
                yield

        turns = [Depends(in_turn)] if mode == "turns" else []
        app = create_adk_app(agent, dependencies=turns)

        @app.get("/commands")
        def commands() -> list[str]:
            """The commands sent since the last time, by name."""
            names = log.names
            log.clear()
            return names

        config = uvicorn.Config(app, port=port, log_level="info")
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
