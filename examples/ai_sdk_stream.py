"""ADK's events as the AI SDK has them: as messages, and as the stream of one."""

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse
from google.adk.events import Event

logger = logging.getLogger(__name__)


def message_of(event: Event) -> dict[str, Any]:
    return {
        "id": event.id,
        "role": "user" if event.author == "user" else "assistant",
        "parts": [{"type": "text", "text": said(event)}],
    }


def stream(events: AsyncIterator[Event]) -> StreamingResponse:
    return StreamingResponse(
        (f"data: {json.dumps(chunk)}\n\n" async for chunk in chunks(events)),
        media_type="text/event-stream",
        headers={"x-vercel-ai-ui-message-stream": "v1"},
    )


class StoppedError(Exception):
    """Somebody has stopped the turn."""


async def chunks(events: AsyncIterator[Event]) -> AsyncIterator[dict[str, str]]:
    """The AI SDK's stream of a message, and how it has ended."""
    try:
        async for chunk in texts(events):
            yield chunk
        yield {"type": "finish"}
    except StoppedError:
        yield {"type": "abort"}
    except Exception:  # users need not know what it was
        logger.exception("A turn has failed.")
        yield {"type": "error", "errorText": "There is no answer. Try it again."}


async def texts(events: AsyncIterator[Event]) -> AsyncIterator[dict[str, str]]:
    """A text for each event of the agent's."""
    sent: dict[str, int] = {}
    async for event in events:
        text = said(event)
        if event.author == "user" or not text:
            continue
        if not sent:
            yield {"type": "start"}
        if event.id not in sent:
            sent[event.id] = 0
            yield {"type": "text-start", "id": event.id}
        new = text if event.partial else text[sent[event.id] :]  # an event is whole
        sent[event.id] += len(new)
        yield {"type": "text-delta", "id": event.id, "delta": new}
        if not event.partial:
            yield {"type": "text-end", "id": event.id}


def said(event: Event) -> str:
    parts = (event.content and event.content.parts) or []
    found = [it.text for it in parts if it.text and not it.thought]
    spoken = (event.input_transcription, event.output_transcription)
    return "".join(found + [it.text for it in spoken if it and it.text])
