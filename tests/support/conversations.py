"""Conversations with an agent that repeats what it is asked, in turns of a session."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.genai import types
from pydantic import Field
from typing_extensions import override

from mongo_session_service import Branch, MongoSessionService, RunningTurn
from support.one_session import IDS
from support.scripted_model import conversation_in, said, texts_of

OWNER = {name: IDS[name] for name in ("app_name", "user_id")}
ROOT = IDS["session_id"]
STREAMED = RunConfig(streaming_mode=StreamingMode.SSE)


class EchoModel(BaseLlm):
    """Answers "to" the last text of its prompt; or fails."""

    model: str = "echo"
    failure: Exception | None = None
    requests: list[LlmRequest] = Field(default_factory=list)

    @override
    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the answer."""
        self.requests.append(llm_request)
        if self.failure is not None:
            raise self.failure
        text = f"to {conversation_in(llm_request)[-1]}"
        yield LlmResponse(content=types.ModelContent(text))


def runner_of(service: MongoSessionService, model: BaseLlm, **agent: Any) -> Runner:
    agent_ = LlmAgent(name="agent", model=model, **agent)
    return Runner(agent=agent_, app_name=IDS["app_name"], session_service=service)


async def start(
    service: MongoSessionService,
    model: BaseLlm,
    text: str = "hi",
    *,
    ids: dict[str, str] = IDS,
    **options: Any,
) -> RunningTurn:
    """Begin a turn in which an agent with this model is asked; it streams."""
    return await service.start_turn(
        runner_of(service, model),
        user_id=ids["user_id"],
        session_id=ids["session_id"],
        new_message=said(text),
        run_config=STREAMED,
        **options,
    )


async def ask(
    service: MongoSessionService,
    text: str | None,
    *,
    session_id: str = ROOT,
    runner: Runner | None = None,
    **how: Any,
) -> tuple[str, str]:
    """Run a turn; return its session and its invocation."""
    if text is not None:
        how["new_message"] = said(text)
    running = await service.start_turn(
        runner or runner_of(service, EchoModel()),
        user_id=IDS["user_id"],
        session_id=session_id,
        **how,
    )
    events = await running.result()
    return running.session_id, events[-1].invocation_id


async def talk(service: MongoSessionService, *questions: str, **new: Any) -> list[str]:
    """Create the session, and ask questions; return their invocations."""
    await service.create_session(**IDS, **new)
    return [(await ask(service, each))[1] for each in questions]


async def texts(service: MongoSessionService, session_id: str = ROOT) -> list[str]:
    """What the events of a session say."""
    found = await service.get_session(**OWNER, session_id=session_id)
    assert found is not None
    return [text for each in found.events for text in texts_of(each.content)]


async def family(service: MongoSessionService, session_id: str = ROOT) -> list[Branch]:
    return await service.find_branches(**OWNER, session_id=session_id)


async def shown(service: MongoSessionService) -> list[tuple[str, int]]:
    """The conversations of the user, and how many versions they have."""
    page = await service.find_sessions(**OWNER, families=True)
    return [(each.id, each.branches) for each in page.sessions]
