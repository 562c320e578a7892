"""The agent of the support desk, with a script in place of a model."""

import asyncio
import os
import re
from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.function_tool import FunctionTool
from google.genai import types


def refund(order: str) -> str:
    """Refunds an order. A colleague has to confirm it."""
    return f"Order {order} is refunded."


class Script(BaseLlm):
    """Stands for a model: it refunds an order, or counts the customer's messages."""

    model: str = "script"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        [*_, given] = llm_request.contents[-1].parts or []
        if given.function_response:
            response = given.function_response.response or {}
            text = response.get("result") or "There is no refund."
        elif asked := re.search(r"refund (\w+)", given.text or "", re.IGNORECASE):
            call = types.Part.from_function_call(
                name="refund", args={"order": asked[1]}
            )
            yield LlmResponse(content=types.ModelContent(call))
            return
        else:
            said = [each for each in llm_request.contents if each.role == "user"]
            text = f"This is your message {len(said)}. " + "I am looking. " * 10
        for word in re.findall(r"\S+\s*", text) if stream else []:
            yield LlmResponse(content=types.ModelContent(word), partial=True)
            await asyncio.sleep(0.2)
        yield LlmResponse(content=types.ModelContent(text))


agent = LlmAgent(
    name="clerk",
    model=os.environ.get("MODEL") or Script(),  # MODEL=gemini-2.5-flash, say
    instruction="You answer customers of a shop. You refund orders that they name.",
    tools=[FunctionTool(refund, require_confirmation=True)],
)
