"""A model that says what a test has it say, when the test has it say it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.genai import types
from pydantic import PrivateAttr


class SpokenModel(BaseLlm):
    """A model whose answer is streamed, piece by piece, by :meth:`say`."""

    model: str = "spoken"
    _pieces: asyncio.Queue[types.Part | None] = PrivateAttr(
        default_factory=asyncio.Queue
    )

    def say(self, *texts: str, thought: bool | None = None) -> None:
        for text in texts:
            self._pieces.put_nowait(types.Part(text=text, thought=thought))

    def end_answer(self) -> None:
        """Have it end the answer, which is stored then."""
        self._pieces.put_nowait(None)

    async def generate_content_async(
        self,
        llm_request: LlmRequest,  # noqa: ARG002
        stream: bool = False,  # noqa: ARG002, FBT001, FBT002  ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield pieces, and then the whole."""
        said: dict[bool | None, str] = {}
        while (part := await self._pieces.get()) is not None:
            said[part.thought] = said.get(part.thought, "") + (part.text or "")
            yield LlmResponse(
                content=types.Content(role="model", parts=[part]), partial=True
            )
        parts = [types.Part(text=text, thought=kind) for kind, text in said.items()]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


class BreakingModel(SpokenModel):
    """A model that fails once it has said what it is to say."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: FBT001, FBT002  ADK's signature
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield pieces, and raise in place of the whole."""
        async for each in super().generate_content_async(llm_request, stream):
            if not each.partial:
                raise ConnectionError("s3cret")
            yield each
