"""Writing to the session that a live page shows, and reading the page."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.events import Event, EventActions
from google.adk.runners import Runner
from google.adk.sessions import Session
from google.genai import types
from playwright.async_api import Page

from mongo_session_service import MongoSessionService, RunningTurn

KEY = {"app_name": "weather", "user_id": "ada", "session_id": "monday"}


def of(url: str, **key: str) -> str:
    return f"{url}/?{urlencode(KEY | key)}"


async def say(
    service: MongoSessionService, session: Session, text: str, /, **delta: Any
) -> None:
    event = Event(
        author="agent",
        content=types.ModelContent(types.Part(text=text)),
        actions=EventActions(state_delta=delta),
    )
    await service.append_event(session, event)


async def ask_clock(service: MongoSessionService, agent: LlmAgent) -> RunningTurn:
    """A turn of its session, in which an agent is asked for the time."""
    runner = Runner(agent=agent, app_name=KEY["app_name"], session_service=service)
    return await service.start_turn(
        runner,
        user_id=KEY["user_id"],
        session_id=KEY["session_id"],
        new_message=types.UserContent("What time is it?"),
        run_config=RunConfig(streaming_mode=StreamingMode.SSE),
    )


async def revisions(page: Page) -> list[int]:
    """The revisions of the events shown, from top to bottom."""
    numbers = await page.locator(".event .nth").all_text_contents()
    return [int(number) for number in numbers]


async def hide(page: Page) -> None:
    """Have a page believe that its tab is hidden; a headless browser hides none."""
    await _show(page, "hidden")


async def reveal(page: Page) -> None:
    """Have it believe that it is shown again."""
    await _show(page, "visible")


async def _show(page: Page, state: str) -> None:
    await page.evaluate(
        """state => {
          const value = { configurable: true, get: () => state };
          Object.defineProperty(document, "visibilityState", value);
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        state,
    )
