"""The live page stays readable: with hostile, long and ever more content."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.genai import types
from playwright.async_api import Page, expect
from pymongo import MongoClient
from support.live_pages import KEY, of, revisions, say

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
    shown = "<img src…/script>"
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


LONG_TASKS = """
  window.tasks = [];
  const observer = new PerformanceObserver((list) => {
    for (const each of list.getEntries()) window.tasks.push(Math.round(each.duration));
  });
  observer.observe({ type: "longtask", buffered: true });
"""
MOST_DRAWN = 300
FREEZE = 400
"""Milliseconds that nothing may take; without others on the machine it is 50 to 150."""


async def longest_task(page: Page) -> int:
    """The milliseconds of the longest task since the last call, if any took over 50."""
    return max(await page.evaluate("window.tasks.splice(0)"), default=0)


async def test_twenty_thousand_events_do_not_freeze_the_page(
    page: Page,
    url: str,
    service: MongoSessionService,
    session: Session,
    admin: MongoClient,
    database: str,
) -> None:
    """Only those near the window are drawn, whichever they are, and no task is long."""
    count = 20_000
    await say(service, session, "number 0", number=0)
    events = admin[database].events
    stored: Any = events.find_one()
    copies = []
    for revision in range(2, count + 1):
        each = copy.deepcopy(stored)
        each["_id"]["revision"], each["event"]["id"] = revision, f"e{revision}"
        each["event"]["invocation_id"] = f"i{revision // 4}"
        copies.append(each)
    events.insert_many(copies)
    admin[database].sessions.update_one({}, {"$set": {"revision": count}})
    await page.add_init_script(LONG_TASKS)

    await page.goto(of(url))
    shown = page.locator("#event-count")
    await expect(shown).to_have_text(f"{count:,}", timeout=60_000)
    last = page.locator(".event").last
    await expect(last).to_have_attribute("data-revision", str(count))
    await expect(last).to_be_in_viewport()
    await expect(page.locator(".event").nth(MOST_DRAWN)).to_have_count(0)
    assert await longest_task(page) < FREEZE

    again = await service.get_session(**KEY)
    assert again is not None
    await say(service, again, "a needle")
    await expect(page.locator(".event .text").last).to_have_text("a needle")
    await page.locator("#filter").fill("needle")
    await expect(page.locator(".event")).to_have_count(1)
    await page.locator("#filter").press("Escape")
    await expect(shown).to_have_text(f"{count + 1:,}")
    await page.keyboard.press("g")
    await expect(page.locator(".event").first).to_be_focused()
    await expect(page.locator(".event").first).to_have_attribute("data-revision", "1")
    await page.locator("#slider").fill(str(count // 2))
    marked = page.locator(".event[aria-current]")
    await expect(marked).to_have_attribute("data-revision", str(count // 2))
    await expect(marked).to_be_in_viewport()
    seen = await revisions(page)
    middle = seen[seen.index(count // 2) - 5 :][:10]
    assert middle == list(range(middle[0], middle[0] + 10))
    assert await longest_task(page) < FREEZE


async def test_thirty_thousand_keys_do_not_freeze_the_page(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """They are in order, found and changed, and those near the window are drawn."""
    count = 30_000
    delta = {f"key {number * 7919 % count}": number for number in range(count)}
    event = Event(author="agent", actions=EventActions(state_delta=delta))
    await service.append_event(session, event)
    await page.add_init_script(LONG_TASKS)

    await page.goto(of(url))
    await expect(page.locator("#state-count")).to_have_text(f"{count + 2:,} keys")
    rows = page.locator("#state .row")
    names = [await rows.nth(place).get_attribute("data-key") for place in range(4)]
    assert names == ["city", "key 0", "key 1", "key 2"]
    await expect(rows.nth(MOST_DRAWN)).to_have_count(0)
    await expect(page.locator(".chip")).to_have_count(100)
    await say(service, session, "more", **{"key 12": "new", "key 10.5": "between"})
    await expect(page.locator('[data-key="key 12"]')).to_contain_text("new")
    await expect(
        page.locator('[data-key="key 10.5"] + [data-key="key 11"]')
    ).to_have_count(1)
    await page.get_by_label("Find in the state").fill("29999")
    await expect(rows).to_have_count(2)
    await page.get_by_label("Find in the state").fill("")
    await page.locator("#slider").press("ArrowLeft")
    await expect(page.locator("#state-then .row").nth(3)).to_be_visible()
    await page.locator(".event .chip").last.click()

    await expect(page.locator("#state-then .pointed")).to_be_in_viewport()
    assert await longest_task(page) < FREEZE


@pytest.mark.parametrize(
    "text",
    [
        "* " * 24_000 + "x",
        "|a|b|\n|-|-|\n" + "|x|y|\n" * 8_000,
        "lorem ipsum dolor " * 500_000,
    ],
    ids=["rule", "table", "9 MB"],
)
async def test_a_long_text_does_not_freeze_the_page(
    page: Page, url: str, service: MongoSessionService, session: Session, text: str
) -> None:
    """It is folded, and set piece by piece when it is unfolded."""
    await page.add_init_script(LONG_TASKS)
    await page.goto(of(url))
    await say(service, session, text)
    box = page.locator(".event .text")
    await page.get_by_role("button", name="Show all").click()
    await expect(box).not_to_have_class(re.compile("folded"))
    await expect(box.locator("> *").nth(9)).to_be_attached()

    assert await longest_task(page) < FREEZE
