"""The live page's turns: events of an invocation under a heading with its sums."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types
from playwright.async_api import Page, expect
from support.live_pages import of

from mongo_session_service import MongoSessionService
from mongo_session_service.codec.waiting_calls import STOPPED

NOON = 1_800_000_000.0


def used(prompt: int, answer: int, **kinds: int) -> Any:
    return types.GenerateContentResponseUsageMetadata(
        prompt_token_count=prompt, candidates_token_count=answer, **kinds
    )


def call(name: str, id_: str) -> types.Part:
    function_call = types.FunctionCall(id=id_, name=name, args={"day": name})
    return types.Part(function_call=function_call)


def result(name: str, id_: str, response: dict[str, Any]) -> types.Part:
    function_response = types.FunctionResponse(id=id_, name=name, response=response)
    return types.Part(function_response=function_response)


def event(seconds: float, turn: str, part: Any, author: str = "agent", **rest: Any):  # type: ignore[no-untyped-def]  # noqa: ANN201
    parts = part if isinstance(part, list) else [part]
    return Event(
        author=author,
        invocation_id=turn,
        timestamp=NOON + seconds,
        content=types.Content(role="model", parts=parts),
        **rest,
    )


TWO_TURNS = [
    event(0, "i1", types.Part(text="Weather?"), "user"),
    event(
        *(1, "i1", [call("sun", "c1"), call("rain", "c2")]),
        usage_metadata=used(1200, 30, cached_content_token_count=900),
        model_version="model-1",
    ),
    event(
        *(3.5, "i1"),
        [result("sun", "c1", {"sun": 1}), result("rain", "c2", {"error": "no radar"})],
    ),
    event(
        *(4, "i1", types.Part(text="Sun!")),
        usage_metadata=used(1300, 40, thoughts_token_count=7),
        model_version="model-1",
    ),
    event(3604, "i2", types.Part(text="Book a seat"), "user"),
    event(3605, "i2", call("ask", "c3"), long_running_tool_ids={"c3"}),
    event(7205, "i2", result("ask", "c3", {"is": "yes"}), "user"),
    event(7206, "i2", types.Part(text="Booked."), error_code="MAX_TOKENS"),
]


async def test_a_turns_heading_has_its_tokens_tools_errors_and_time(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """Its time is without the user's pauses."""
    for each in TWO_TURNS[:-1]:
        await service.append_event(session, each)
    await page.goto(of(url))
    await expect(page.locator(".turn-head")).to_have_count(2)
    await service.append_event(session, TWO_TURNS[-1])

    first = [
        "model-1",
        "2,500 tokens in · 70 out · 900 cached · 7 thoughts",
        "4.0 s",
        "2 tool calls, 2.5 s",
        "1 error",
    ]
    numbers = page.locator(".turn-head .sum")
    second = ["2.0 s", "1 tool call", "1 error"]
    await expect(numbers).to_have_text([*first, *second])
    await expect(page.locator("#sums > *")).to_have_text(
        ["2 turns", *first[:2], "6.0 s", "3 tool calls, 2.5 s", "2 errors"]
    )
    await expect(page.locator(".when i")).to_have_text(
        ["+1.0 s", "+2.5 s", "+500 ms", "+1.0 s", "+1.0 s"]
    )


async def test_a_stop_and_a_confirmation_are_no_errors(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """A call that waited for a person's word, and one that a user has stopped."""
    asking = EventActions(requested_tool_confirmations={"c1": ToolConfirmation()})
    stopped = {"error_code": "INVOCATION_ABORTED", "error_message": STOPPED}
    because = {"custom_metadata": {"stop_reason": "too long"}}
    for each in (
        event(0, "i1", call("refund", "c1")),
        event(1, "i1", result("refund", "c1", {"error": "asks"}), actions=asking),
        event(2, "i1", result("refund", "c1", {"done": True})),
        event(3, "i2", call("search", "c2")),
        event(
            4, "i2", result("search", "c2", {"error": STOPPED}), **stopped, **because
        ),
    ):
        await service.append_event(session, each)
    await page.goto(of(url))

    await expect(page.locator(".event")).to_have_count(5)
    last = page.locator('[data-revision="5"]')
    await expect(last.locator(".tag")).to_have_text("stopped by the user: too long")
    await expect(page.locator(".bad")).to_have_count(0)
    await expect(page.locator("#sums")).not_to_contain_text("error")


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_stop_is_shown_after_the_words_that_it_stopped(
    page: Page,
    url: str,
    service: MongoSessionService,
    session: Session,
    *,
    is_open: bool,
) -> None:
    """As they arrive, and in a history: the log has it before them."""
    stopped = {"error_code": "INVOCATION_ABORTED", "error_message": STOPPED}
    events = [
        event(0, "i1", types.Part(text="Well?")),
        event(9, "i1", result("search", "c1", {"error": STOPPED}), **stopped),
        event(9, "i1", [], **stopped),
        event(7, "i1", types.Part(text="I"), interrupted=True),
        event(8, "i1", types.Part(text="am"), interrupted=True),
        event(12, "i2", types.Part(text="Go on.")),
        event(14, "i2", [], **stopped),
        event(13, "i2", types.Part(text="Gladly"), interrupted=True),
        event(15, "i3", [], **stopped),
    ]
    if is_open:
        await page.goto(of(url))
        await expect(page.locator("#status")).to_have_text("Live")
    for each in events:
        await service.append_event(session, each)
    if not is_open:
        await page.goto(of(url))
    numbers = [str(it) for it in (1, 4, 5, 2, 3, 6, 8, 7, 9)]
    await expect(page.locator(".event .nth")).to_have_text(numbers)


async def test_a_call_and_its_result_are_one_card(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """The card has both, its time and its outcome; the result's event leads to it."""
    for each in TWO_TURNS[:2]:
        await service.append_event(session, each)
    await page.goto(of(url))
    cards = page.locator("details.call")
    await expect(cards).to_contain_text(["no result yet", "no result yet"])
    await cards.first.locator("summary").first.click()

    for each in TWO_TURNS[2:]:
        await service.append_event(session, each)

    await expect(cards).to_have_count(3)
    await expect(cards.first).to_contain_text(
        re.compile(r"Result, 14 characters copy\s*sun: 1")
    )
    await expect(cards.locator("summary .result")).to_have_text(
        ["→ {sun: 1}", '→ {error: "no radar"}', '→ {is: "yes"}']
    )
    tails = page.locator("details.call > summary > .what:last-child")
    await expect(tails).to_have_text(["2.5 s", "2.5 s", "answered by the user"])
    await expect(cards.nth(1)).to_have_class("call bad")
    await page.get_by_role("button", name="↑ result of rain").click()
    await expect(cards.nth(1)).to_have_attribute("open", "")
    await expect(cards.nth(1)).to_contain_text("no radar")


async def test_a_turn_folds(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """A folded turn keeps its heading, and the keyboard passes it by."""
    for each in TWO_TURNS:
        await service.append_event(session, each)
    await page.goto(of(url))
    await expect(page.locator(".event")).to_have_count(8)

    await page.get_by_role("button", name="Turn 1").press("Enter")

    await expect(page.locator(".event:visible")).to_have_count(4)
    await expect(page.locator(".turn-head:visible")).to_have_count(2)
    await page.keyboard.press("g")
    await expect(page.locator(".event").first).to_be_focused()
    await expect(page.locator(".event").first).to_contain_text("Book a seat")

    await page.keyboard.press("/")
    await page.keyboard.type("radar")
    await expect(page.locator("#event-count")).to_have_text("1 of 8")
    await expect(page.locator(".turn-head:visible")).to_have_count(1)
