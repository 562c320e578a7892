"""An ADK agent with a tool, whose conversation and user state are kept in MongoDB.

Run it twice: the conversation continues. For a real model, replace the marked line.
"""

import asyncio
import os

from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext
from google.genai import types
from scripted_model import ScriptedModel, text_of

from mongo_session_service import MongoSessionService

URI = os.environ.get("MONGODB_URI", "mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
APP, USER, SESSION = "travel", "ada", "monday"


def remember_city(city: str, tool_context: ToolContext) -> str:
    """Notes the city that the user lives in."""
    tool_context.state["user:city"] = city  # "user:" is shared by the user's sessions
    return f"Noted: you live in {city}."


agent = LlmAgent(
    name="travel_agent",
    model=ScriptedModel(),  # a real one: model="gemini-2.5-flash", with an API key
    instruction="You plan trips. The user lives in: {user:city?}.",
    tools=[remember_city],
)


async def main() -> None:
    async with MongoSessionService(URI) as service:
        runner = Runner(
            app_name=APP,
            agent=agent,
            session_service=service,
            auto_create_session=True,
        )
        for text in ("I live in Lisbon.", "Hello again."):
            print(f"user:  {text}")
            async for event in runner.run_async(
                user_id=USER, session_id=SESSION, new_message=types.UserContent(text)
            ):
                if event.is_final_response():
                    print(f"agent: {text_of(event.content)}")
        session = await service.get_session(
            app_name=APP, user_id=USER, session_id=SESSION
        )
        assert session
        print(f"Events stored: {len(session.events)}. State: {session.state}")


if __name__ == "__main__":
    asyncio.run(main())
