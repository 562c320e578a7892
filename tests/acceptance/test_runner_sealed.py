"""ADK's Runner on a service that stores nothing in clear."""

from __future__ import annotations

from google.adk.agents import LlmAgent
from google.adk.runners import Runner
from google.adk.tools import ToolContext
from pymongo import MongoClient
from support.encryption_hooks import CANARY, SEALED, clear_text, cluster_time
from support.scripted_model import (
    APP,
    ScriptedModel,
    ask,
    call,
    conversation_in,
    instruction_of,
    rewind,
    start,
    stored,
)

from mongo_session_service import MongoSessionService


def note(text: str, tool_context: ToolContext) -> str:
    """Note something."""
    tool_context.state["noted"] = text
    tool_context.state["user:last"] = text
    return f"Noted: {text}"


async def test_agents_notice_nothing(
    mongodb_uri: str, database: str, admin: MongoClient
) -> None:
    """Templates, tools, later turns and rewinds work; nothing is stored in clear."""
    since = cluster_time(admin)
    script = [call("note", text=CANARY), "Done.", "You said it.", "I know nothing."]
    model = ScriptedModel(script=script)
    agent = LlmAgent(
        name="secretary",
        model=model,
        tools=[note],
        instruction="Noted {noted?}, for {user:last?} of {topic}.",
    )
    async with MongoSessionService(mongodb_uri, database=database, **SEALED) as service:
        runner = Runner(agent=agent, app_name=APP, session_service=service)
        await start(service, "s", {"topic": f"the {CANARY}"})
        first = await ask(runner, "s", f"Note {CANARY}")
        await ask(runner, "s", "What did I say?")
        assert f"Noted {CANARY}, for {CANARY} of the {CANARY}." in instruction_of(
            model.requests[2]
        )
        assert f"Note {CANARY}" in conversation_in(model.requests[2])

        await rewind(runner, "s", first)
        await ask(runner, "s", "And now?")

        assert conversation_in(model.requests[3]) == ["And now?"]
        session = await stored(service, "s")
        assert session.state["noted"] is None
        assert session.state["user:last"] == CANARY

    assert list(clear_text(admin, [database], since)) == []
