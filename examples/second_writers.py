"""A webhook that writes to a session while the agent is answering in it.

With ``on_conflict="rebase"`` both writes are kept, in the order of their commits. By
default, the agent's turn would end with a ``StaleSessionError``.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.events import Event, EventActions
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types
from scripted_model import ScriptedModel, text_of

from mongo_session_service import MongoSessionService

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
KEY: dict[str, Any] = {"app_name": "shop", "user_id": "ada", "session_id": "order"}


async def on_payment() -> None:
    """Note a payment, as the callback of a payment provider does in its own process."""
    async with MongoSessionService(URI, on_conflict="rebase") as service:
        session = await service.get_session(**KEY)
        assert session, "The agent is answering in it."
        actions = EventActions(state_delta={"is_paid": True})
        await service.append_event(session, Event(author="payments", actions=actions))


class ModelThatTakesItsTime(ScriptedModel):
    """The payment arrives while it is thinking."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        await on_payment()
        async for response in super().generate_content_async(llm_request):
            yield response


async def main() -> None:
    agent = LlmAgent(name="shop_agent", model=ModelThatTakesItsTime())
    async with MongoSessionService(URI, on_conflict="rebase") as service:
        runner = Runner(
            app_name=KEY["app_name"],
            agent=agent,
            session_service=service,
            auto_create_session=True,
        )
        message = types.UserContent("Where is my order?")
        async for event in runner.run_async(
            user_id=KEY["user_id"], session_id=KEY["session_id"], new_message=message
        ):
            print("the agent answers:", text_of(event.content))
        session = await service.get_session(**KEY)
        assert session
        print([event.author for event in session.events[-3:]], session.state)


if __name__ == "__main__":
    asyncio.run(main())
