"""The live page's past: the state at any event, its address, and forks."""

from __future__ import annotations

import re

import pytest
from google.adk.sessions import Session
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from support.http_server import serving
from support.live_pages import KEY, of, say

from mongo_session_service import MongoSessionService
from mongo_session_service.http import allow_everyone, live_app

ROWS = "#state-then .row > div:first-child"


@pytest.fixture
def app(service: MongoSessionService) -> Starlette:
    """An app in which everybody may fork."""
    return live_app(service, authorize=allow_everyone)


@pytest.fixture
async def session(service: MongoSessionService) -> Session:
    """A session of three events, in which a city moves."""
    state = {"city": "Turin", "cart": {"items": 1}, "user:name": "Ada"}
    session = await service.create_session(**KEY, state=state)
    await say(service, session, "one", city="Rome")
    await say(service, session, "two", cart={"items": 2}, sky="blue")
    await say(service, session, "three", city="Oslo", **{"user:name": "Countess"})
    return session


@pytest.mark.usefixtures("session")
async def test_a_selected_event_shows_the_state_after_it(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """State is as it was then, with what the event changed and what that had been."""
    await page.goto(of(url))
    await page.locator(".event .text").first.click()

    await expect(page.locator("#moment-words")).to_have_text("after event 1")
    await expect(page.locator(ROWS)).to_have_text(
        ["cart: {1} {items: 1}", 'city: "Rome""Turin"', 'user:name: "Countess"']
    )
    await expect(page.locator("#state-then .was")).to_have_text('"Turin"')
    await expect(page.locator("#state-then .latest .at")).to_have_text("#1")
    await page.keyboard.press("j")
    await expect(page.locator(ROWS)).to_have_text(
        [
            "cart: {1} {items: 2}{items: 1}",
            'city: "Rome"',
            'sky: "blue"',
            'user:name: "Countess"',
        ]
    )
    await expect(page.locator('#state-then [data-key="city"] .at')).to_have_text("#1")

    await say(service, session, "four", city="Bern")
    await expect(page.locator(".event")).to_have_count(4)
    await expect(page.locator("#moment-words")).to_have_text("after event 2")
    await expect(page.locator("#state")).to_be_hidden()
    await page.keyboard.press("Escape")
    await expect(page.locator("#moment-words")).to_have_text("now")
    await expect(page.locator('#state [data-key="city"]')).to_contain_text("Bern")


@pytest.mark.usefixtures("session")
async def test_the_slider_goes_back_to_the_creation(page: Page, url: str) -> None:
    """Each step is an event, which is marked; at its end it is now."""
    await page.goto(of(url))
    slider = page.get_by_role("slider", name="Revision")
    await expect(slider).to_have_value("3")
    await slider.press("ArrowLeft")
    await expect(page.locator(".event[aria-current]")).to_contain_text("two")
    await expect(slider).to_have_attribute("aria-valuetext", "after event 2")
    await slider.press("Home")
    await expect(page.locator("#moment-words")).to_have_text("as it was created")
    await expect(page.locator(ROWS).first).to_have_text("cart: {1} {items: 1}")
    await expect(page.locator(ROWS).nth(1)).to_have_text('city: "Turin"')
    await expect(page.locator(".event[aria-current]")).to_have_count(0)

    await slider.press("End")

    await expect(page.locator("#moment-words")).to_have_text("now")
    await expect(page.locator("#state")).to_be_visible()


@pytest.mark.usefixtures("session")
async def test_the_address_names_the_event(page: Page, url: str) -> None:
    """It opens at the event, back closes it, and forward opens it again."""
    await page.goto(of(url))
    await page.locator(".event .text").nth(1).click()
    await expect(page).to_have_url(f"{of(url)}#r=2")
    await page.go_back()
    await expect(page).to_have_url(of(url))
    await expect(page.locator("#moment-words")).to_have_text("now")
    await page.go_forward()
    await expect(page.locator("#moment-words")).to_have_text("after event 2")
    await page.get_by_role("button", name="Now").click()
    await expect(page).to_have_url(of(url))

    await page.goto("about:blank")
    await page.goto(f"{of(url)}#r=1")
    await expect(page.locator(".event[aria-current]")).to_contain_text("one")
    await expect(page.locator("#state-then .was")).to_have_text('"Turin"')
    await page.get_by_role("button", name="Now").click()
    await expect(page.locator("#moment-words")).to_have_text("now")
    await expect(page).to_have_url(of(url))


@pytest.mark.usefixtures("session")
async def test_a_fork_is_asked_for_and_opened(
    page: Page, url: str, service: MongoSessionService
) -> None:
    """Cancel changes nothing; Fork opens a session with the events up to there."""
    await page.goto(of(url))
    await page.locator(".event .text").nth(1).click()
    for name in ("Cancel", "Fork"):
        await page.get_by_role("button", name="Fork from here").click()
        await expect(page.locator("#fork-words")).to_contain_text("up to 2,")
        await page.get_by_role("button", name=name, exact=True).click()

    await expect(page).not_to_have_url(re.compile("monday"))
    await expect(page.locator(".event .text")).to_have_text(["one", "two"])
    await expect(page.locator("#revision")).to_have_text("revision 2")
    listed = await service.list_sessions(app_name="weather", user_id="ada")
    assert len(listed.sessions) == 2


@pytest.mark.usefixtures("session")
async def test_the_page_offers_permitted_actions_only(
    page: Page, service: MongoSessionService
) -> None:
    """Where an app permits other writing only, the page has no fork."""
    app = live_app(
        service,
        authorize=lambda _, *, action, **__: action != "fork",
    )
    async with serving(app) as url:
        await page.goto(of(url))
        await expect(page.locator("#status")).to_have_text("Live")
        await expect(page.locator("#fork")).to_be_hidden()
