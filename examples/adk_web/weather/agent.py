"""An agent for ``adk web``, ``adk api_server`` and ``adk run``."""

from collections.abc import AsyncGenerator

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext
from google.genai import types


class ScriptedModel(BaseLlm):
    """Asks for the forecast whatever the user says."""

    model: str = "scripted"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        [*_, latest] = llm_request.contents[-1].parts or []
        if told := latest.function_response:
            part = types.Part(text=(told.response or {})["result"])
        else:
            part = types.Part.from_function_call(name="get_forecast", args={})
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def get_forecast(tool_context: ToolContext) -> str:
    """Tells the weather of tomorrow."""
    given = tool_context.state.get("app:forecasts_given", 0) + 1
    tool_context.state["app:forecasts_given"] = given  # "app:" is shared by all users
    return f"Sun, 24 degrees. This was forecast {given}."


root_agent = LlmAgent(
    name="weather_agent",
    model=ScriptedModel(),  # a real one: model="gemini-2.5-flash", with an API key
    instruction="You tell the weather.",
    tools=[get_forecast],
)
