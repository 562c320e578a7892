"""Models that follow a few rules, so that the examples need no API key."""

import asyncio
import re
from collections.abc import AsyncGenerator

from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

# Without a count of tokens, ADK logs a warning at each answer.
NO_TOKENS = types.GenerateContentResponseUsageMetadata(
    prompt_token_count=0, candidates_token_count=0
)


class ScriptedModel(BaseLlm):
    """Calls ``remember_city`` for a city, or counts messages."""

    model: str = "scripted"

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer as a model would, to exactly what ADK would send to one."""
        latest = llm_request.contents[-1]
        [*_, given] = latest.parts or []
        if given.function_response:
            response = given.function_response.response or {}
            part = types.Part(text=response["result"])
        elif named := re.search(r"live in (\w+)", text_of(latest)):
            args = {"city": named[1]}
            part = types.Part.from_function_call(name="remember_city", args=args)
        else:
            asked = [c for c in llm_request.contents if c.role == "user" and text_of(c)]
            part = types.Part(text=f"This is message {len(asked)} of this session.")
        content = types.Content(role="model", parts=[part])
        yield LlmResponse(content=content, usage_metadata=NO_TOKENS)


def text_of(content: types.Content | None) -> str:
    parts = content.parts if content else None
    return "".join(part.text or "" for part in parts or [])


class CountingModel(BaseLlm):
    """Counts as far as the user says, ten numbers in a second."""

    model: str = "counting"

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Stream the answer as a model would: piece by piece, and then the whole."""
        asked = re.findall(r"\d+", text_of(llm_request.contents[-1]))
        numbers = [f"{number} " for number in range(1, int([*asked, 10][0]) + 1)]
        for text in numbers:
            yield LlmResponse(content=types.ModelContent(text), partial=True)
            await asyncio.sleep(0.1)
        content = types.ModelContent("".join(numbers))
        yield LlmResponse(content=content, usage_metadata=NO_TOKENS)
