"""The live page during a turn: what the agent says, how the turn stands, its end."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.agents import LlmAgent
from google.adk.events import Event
from google.adk.models import LlmRequest
from google.adk.runners import Runner
from google.genai.types import UserContent
from playwright.async_api import Page, expect
from pymongo import MongoClient
from support.abandoned_turns import abandon_turn
from support.http_server import serving
from support.live_pages import KEY, ask_clock, of
from support.spoken_model import SpokenModel

from mongo_session_service import MongoSessionService
from mongo_session_service.http import allow_everyone, live_app

pytestmark = pytest.mark.usefixtures("session")


@pytest.fixture
def model() -> SpokenModel:
    return SpokenModel()


@pytest.mark.core
async def test_the_page_shows_an_answer_as_it_grows(
    page: Page, url: str, service: MongoSessionService, model: SpokenModel
) -> None:
    """Also a page that comes late, until the stored event replaces the answer."""
    await page.goto(of(url))
    running = await ask_clock(service, LlmAgent(name="clock", model=model))
    words = page.locator("#running-words")
    await expect(words).to_contain_text("A turn has been running since ")
    await expect(page.locator("#stop")).to_be_hidden()  # one may only read here
    model.say("Is it day?", thought=True)
    model.say("It is **la", "te")
    draft = page.locator(".draft")
    await expect(draft.locator(".thought")).to_have_text("Is it day?")
    await expect(draft.locator(".text").last).to_have_text("It is **late")

    await page.reload()
    await expect(draft.locator(".text").last).to_have_text("It is **late")
    model.say("**.")
    await expect(draft.locator("strong")).to_have_text("late")
    await expect(page.locator(".event .text")).to_have_text(["What time is it?"])
    model.end_answer()

    await expect(page.locator(".event .text")).to_have_text(
        ["What time is it?", "Is it day?", "It is late."]
    )
    await expect(draft).to_have_count(0)
    await expect(page.locator("#running")).to_be_hidden()
    await running.result()


async def test_a_long_answer_is_read_part_by_part(
    page: Page, url: str, service: MongoSessionService, model: SpokenModel
) -> None:
    """No word is lost or doubled where the page has read a part for good."""
    lines = [f"- line {number}" for number in range(2000)]
    await page.goto(of(url))
    running = await ask_clock(service, LlmAgent(name="clock", model=model))
    for at in range(0, len(lines), 100):
        model.say("\n".join(lines[at : at + 100]) + "\n")
    shown = page.locator(".draft li")
    await expect(shown).to_have_count(len(lines))

    texts = await shown.all_text_contents()
    assert texts == [each.removeprefix("- ") for each in lines]
    model.end_answer()
    await running.result()


async def test_a_turn_is_stopped_by_a_button(
    page: Page, service: MongoSessionService, model: SpokenModel
) -> None:
    """The page says that it was, and what was said is an event."""
    async with serving(live_app(service, authorize=allow_everyone)) as url:
        await page.goto(of(url))
        running = await ask_clock(service, LlmAgent(name="clock", model=model))
        model.say("It is")
        await expect(page.locator(".draft .text")).to_have_text("It is")
        await page.locator("#stop").click()

        await expect(page.locator("#running-words")).to_have_text(
            "The turn was stopped: stopped on the live page"
        )
        await expect(page.locator("#stop")).to_be_hidden()
        await expect(page.locator(".draft")).to_have_count(0)
        await expect(page.locator(".event .text").last).to_have_text("It is")
        assert [each.status for each in await service.find_turns(status="stopped")]
        await running.result()
    stored = await service.get_session(**KEY)
    assert stored is not None
    assert stored.events[-1].interrupted


async def test_the_page_names_the_error_of_a_failed_turn(
    page: Page, url: str, service: MongoSessionService, model: SpokenModel
) -> None:
    """It shows the error's class; its message stays in the server's log."""

    def fail(**_: LlmRequest) -> None:
        raise LookupError

    await page.goto(of(url))
    await expect(page.locator("#status")).to_have_text("Live")
    agent = LlmAgent(name="clock", model=model, before_model_callback=fail)
    running = await ask_clock(service, agent)
    with pytest.raises(LookupError):
        await running.result()
    words = page.locator("#running-words")
    await expect(words).to_have_text("The turn failed: LookupError")


@pytest.mark.limits(lease_seconds=0.5, lease_renewal_seconds=0.1)
async def test_a_page_that_comes_after_a_crash_shows_that_the_answer_is_missing(
    page: Page,
    url: str,
    service: MongoSessionService,
    model: SpokenModel,
    database: str,
    admin: MongoClient,
) -> None:
    """Before anybody has repaired the turn, and afterwards."""
    asked = Event(author="user", invocation_id="died", content=UserContent("Well?"))
    await abandon_turn(service, database, admin, asked, KEY)
    await page.goto(of(url))
    words = page.locator("#running-words")
    await expect(words).to_have_text("Last turn: cut off.")

    runner = Runner(
        agent=LlmAgent(name="clock", model=model),
        app_name=KEY["app_name"],
        session_service=service,
    )
    recovering = asyncio.create_task(service.recover_turns(runner))
    while await service.find_turns():
        assert not recovering.done()
    recovering.cancel()
    await page.reload()
    await expect(words).to_have_text("Last turn: cut off: its process died")
    mark = page.locator(".event", has_text="INVOCATION_ABORTED")
    await expect(mark).to_contain_text("The turn was cut off: its process has ended.")
