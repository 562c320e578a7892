"""The live page stays readable: with hostile, long and ever more content."""

from __future__ import annotations

import copy
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.genai import types
from playwright.async_api import Page, expect
from pymongo import MongoClient
from support.live_pages import of, revisions, say

from mongo_session_service import MongoSessionService


async def test_hostile_content_is_only_text(
    page: Page, url: str, service: MongoSessionService
) -> None:
    """What looks like markup or script is shown as it is, wherever it stands."""
    hostile = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script>"
    key = {"app_name": hostile, "user_id": hostile, "session_id": hostile}
    state = {hostile: hostile, "__proto__": {"hacked": hostile}, "list": [hostile]}
    session = await service.create_session(**key, state=state)
    response = {"__proto__": hostile, hostile: {hostile: hostile}}
    part = types.Part.from_function_response(name=hostile, response=response)
    event = Event(
        author=hostile,
        branch=hostile,
        error_code=hostile,
        error_message=hostile,
        content=types.ModelContent([part, types.Part(text=hostile)]),
        actions=EventActions(state_delta=state, artifact_delta={hostile: 1}),
    )
    await service.append_event(session, event)

    await page.goto(url)
    shown = "<img src=x oner…/script>"
    await expect(page.locator("#sessions .name")).to_have_text(shown)
    await page.locator("#sessions a").click()
    await expect(page.locator(".event .text").last).to_have_text(hostile)
    await expect(page.locator(".author")).to_have_text(hostile)
    for summary in await page.locator("summary").all():
        await summary.click()
    await page.locator(".event").focus()
    await page.get_by_role("button", name="{ }").click()
    await expect(page.locator("pre.raw")).to_contain_text("onerror")

    assert await page.locator("main img, main script").count() == 0
    assert await page.evaluate("window.hacked ?? {}.hacked ?? null") is None
    row = page.locator('.row[data-key="__proto__"]')
    await expect(page.locator("#state-then").locator(row)).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("#state").locator(row)).to_be_visible()


async def test_a_reader_is_left_in_peace(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """Whoever scrolls up, pauses or filters keeps their place, and misses nothing."""
    for number in range(30):
        await say(service, session, f"number {number}", number=number)
    await page.goto(of(url))
    await expect(page.locator(".event")).to_have_count(30)
    await expect(page.locator(".event").last).to_be_in_viewport()

    await page.keyboard.press("g")
    await expect(page.locator(".event").first).to_be_focused()
    await say(service, session, "while away")
    await expect(page.locator("#pill")).to_have_text("↓ 1 new")
    await expect(page.locator(".event").first).to_be_in_viewport()
    await page.locator("#pill").click()
    await expect(page.locator(".event").last).to_be_in_viewport()

    await page.keyboard.press("p")
    await say(service, session, "held back")
    await expect(page.locator("#pause")).to_have_text("Resume (1)")
    await expect(page.locator(".event")).to_have_count(31)
    await page.keyboard.press("p")
    await expect(page.locator(".event")).to_have_count(32)

    await page.keyboard.press("/")
    await page.keyboard.type("AWAY")
    await expect(page.locator("#event-count")).to_have_text("1 of 32")
    await page.keyboard.press("Escape")
    await expect(page.locator("#event-count")).to_have_text("32")

    await page.keyboard.press("G")
    await page.keyboard.press("k")
    await page.keyboard.press("c")
    await expect(page.locator("#status")).to_have_text("Event copied")
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert '"text": "held back"' in copied


async def test_five_thousand_events_do_not_freeze_the_page(
    page: Page,
    url: str,
    service: MongoSessionService,
    session: Session,
    admin: MongoClient,
    database: str,
) -> None:
    """A long session is shown whole, and the page answers all the while."""
    await say(service, session, "number 0", number=0)
    events = admin[database].events
    stored: Any = events.find_one()
    copies = []
    for revision in range(2, 5001):
        each = copy.deepcopy(stored)
        each["_id"]["revision"], each["event"]["id"] = revision, f"e{revision}"
        copies.append(each)
    events.insert_many(copies)
    admin[database].sessions.update_one({}, {"$set": {"revision": 5000}})
    await page.add_init_script("""
        window.drawn = new Set();
        requestAnimationFrame(function frame() {
          window.drawn.add(document.querySelectorAll(".event").length);
          requestAnimationFrame(frame);
        });
    """)

    await page.goto(of(url))
    await expect(page.locator(".event").last).to_have_attribute(
        "data-revision", "5000", timeout=30_000
    )

    steps = await page.evaluate("window.drawn.size")
    assert steps > 5, "it was drawn without a pause for whoever reads"
    assert await revisions(page) == list(range(1, 5001))
    await expect(page.locator(".event").last).to_be_in_viewport()
