"""The live page shows what happens, when it happens, and once."""

from __future__ import annotations

import re
import secrets
from urllib.parse import urlsplit

import pytest
from google.adk.events import Event
from google.adk.sessions import Session
from google.genai import types
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from support.http_server import serving
from support.live_pages import KEY, of, revisions, say

from mongo_session_service import MongoSessionService
from mongo_session_service.http import allow_everyone, live_app


@pytest.mark.core
async def test_the_page_shows_events_as_they_are_appended(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """Earlier events and later ones are there, with their parts, and with state."""
    await say(service, session, "Good morning", city="Rome")
    await page.goto(of(url))
    await expect(page.locator("#status")).to_have_text("Live")
    await expect(page.locator(".event .text")).to_have_text(["Good morning"])
    call = types.Part.from_function_call(name="get_weather", args={"day": "today"})
    event = Event(author="agent", content=types.ModelContent(call))
    await service.append_event(session, event)
    await say(service, session, "Sun!", **{"app:asked": 2**60 + 1, "sky": {"sun": 1.0}})

    await expect(page.locator(".event")).to_have_count(3)
    await expect(page.locator("#revision")).to_have_text("revision 3")
    await expect(page.locator(".call")).to_contain_text('get_weather{day: "today"}')
    await expect(page.locator(".event .chip")).to_have_text(
        ['city = "Rome"', "app:asked = 1152921504606846977", "sky = {sun: 1.0}"]
    )
    await expect(page.locator("#state .row > div:first-child")).to_have_text(
        [
            'city: "Rome"',
            "sky: {1} {sun: 1.0}",
            'user:name: "Ada"',
            "app:asked: 1152921504606846977",
        ]
    )
    await expect(page.locator("#announcement")).to_contain_text("agent: Sun!")
    await page.locator("#state summary").click()
    await expect(page.locator("#state .kids")).to_have_text("sun: 1.0")
    await service.update_session(**KEY, title="Weather")
    await expect(page.locator("#state")).to_contain_text('displayName: "Weather"')
    await expect(page.locator("#where .name")).to_have_text("Weather")
    await expect(page).to_have_title("Weather")


async def test_a_cut_connection_loses_and_repeats_nothing(
    page: Page, app: Starlette, service: MongoSessionService, session: Session
) -> None:
    """Cut off again and again while events are appended, the page shows each once."""
    port = 0
    for cut in range(3):
        async with serving(app, port) as url:
            port = urlsplit(url).port or 0
            if cut == 0:
                await page.goto(of(url))
            await expect(page.locator("#status")).to_have_text("Live")
            await say(service, session, f"live {cut}", cut=cut)
            await expect(page.locator(".event")).to_have_count(4 * cut + 1)
        await expect(page.locator("#status")).to_have_text(
            re.compile("Reconnecting|Trying")
        )
        for number in range(3):
            await say(service, session, f"unseen {cut} {number}", cut=f"{cut}{number}")
    async with serving(app, port):
        await expect(page.locator(".event")).to_have_count(12)
        await expect(page.locator("#status")).to_have_text("Live")

        assert await revisions(page) == list(range(1, 13))
        texts = await page.locator(".event .text").all_text_contents()
        assert texts == [
            text
            for cut in range(3)
            for text in (f"live {cut}", *(f"unseen {cut} {n}" for n in range(3)))
        ]
        row = page.locator('#state .row[data-key="cut"]')
        await expect(row).to_contain_text('cut: "22"')
        await expect(row.locator(".at")).to_have_text("#12")


async def test_the_page_marks_the_keys_that_changed_last(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """A changed key flashes, stays marked, and shows its revision and former value."""
    await page.goto(of(url))
    city = page.locator('#state .row[data-key="city"]')
    name = page.locator('#state .row[data-key="user:name"]')
    await expect(city.locator(".at")).to_have_text("")
    await say(service, session, "one", city="Rome")
    await expect(city).to_have_class(re.compile("latest.* flash"))
    await expect(city.locator(".at")).to_have_text("#1")
    await expect(city.locator(".at")).to_have_attribute(
        "title", re.compile("Changed at revision 1, ")
    )
    await expect(city.locator(".was")).to_have_text('"Turin"')

    other = await service.create_session(app_name="weather", user_id="ada")
    await say(service, session, "two", **{"user:name": "Lady"})
    await expect(name.locator(".at")).to_have_text("#2")
    await say(service, other, "elsewhere", **{"user:name": "Countess"})

    await expect(name.locator(".at")).to_have_text("elsewhere")
    await expect(name).to_have_class(re.compile("latest"))
    await expect(city).not_to_have_class(re.compile("latest"))
    await expect(city.locator(".at")).to_have_text("#1")

    await page.reload()

    await expect(city.locator(".at")).to_have_text("#1")
    await expect(name).to_contain_text("Countess")
    await expect(name.locator(".at")).to_have_text("")  # no event of the session set it


async def test_the_token_leaves_the_address_and_lasts(
    page: Page, service: MongoSessionService, session: Session
) -> None:
    """The tab keeps it, and gives it to those that its links open; no cookie does."""
    await say(service, session, "hello")
    token = secrets.token_urlsafe()
    app = live_app(service, authorize=allow_everyone, token=token)
    async with serving(app) as url:
        await page.goto(of(url, token=token))
        await expect(page.locator(".event .text")).to_have_text("hello")
        assert page.url == of(url)
        await page.reload()
        await expect(page.locator(".event .text")).to_have_text("hello")
        await page.locator("#home").click()
        place = page.locator("#picker-text")
        where = f"in database {service.database_name} on 127."
        await expect(place).to_contain_text(where)
        async with page.context.expect_page() as opened:
            await page.get_by_role("link", name="monday").click(modifiers=["Control"])
        tab = await opened.value
        await expect(tab.locator(".event .text")).to_have_text("hello")
        stranger = await (await page.context.browser.new_context()).new_page()  # type: ignore[union-attr]
        await stranger.goto(of(url))
        await expect(stranger.locator("#status")).to_have_text("Not allowed")
        await expect(stranger.locator("#notice-text")).to_contain_text("has a token")

        assert await page.context.cookies() == []


async def test_a_title_is_no_state_that_changed(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """Neither a rename of this service's nor ADK's own, an event, is marked."""
    await page.goto(of(url))
    await expect(page.locator("#status")).to_have_text("Live")
    await expect(page.locator("#where .name")).to_have_text("monday")
    await say(service, session, "one", city="Rome")
    metadata = page.locator('#state .row[data-key="__session_metadata__"]')
    await service.update_session(**KEY, title="Trip")
    await expect(page.locator("#where .name")).to_have_text("Trip")
    await expect(metadata).to_contain_text("Trip")
    renamed = {"__session_metadata__": {"displayName": "A longer trip"}}
    session = await service.get_session(**KEY) or session
    await say(service, session, "two", **renamed)

    await expect(page.locator("#where .name")).to_have_text("A longer trip")
    await expect(page).to_have_title("A longer trip")
    await expect(metadata).to_contain_text("A longer trip")
    await expect(metadata.locator(".at")).to_have_text("")
    await expect(page.locator("#state .latest")).to_have_attribute("data-key", "city")
    await expect(page.locator(".event .chip")).to_have_text(['city = "Rome"'])
    keys = page.locator("#filter-by optgroup[label='State keys'] option")
    await expect(keys).to_have_text(["city"])
    await service.update_session(**KEY, title=None)
    await expect(page.locator("#where .name")).to_have_text("monday")


async def test_redacted_events_leave_the_page(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """The event, the state that it set, and what the page has of both to search."""
    await say(service, session, "My card is 4111", card="4111")
    await say(service, session, "two")
    await page.goto(of(url))
    await expect(page.locator(".event .text")).to_have_text(["My card is 4111", "two"])
    first = session.events[0].id

    await service.redact_events(**KEY, event_ids=[first], state=True)

    await expect(page.locator(".event .text")).to_have_text(["[redacted]", "two"])
    row = page.locator('#state .row[data-key="card"]')
    await expect(row).to_contain_text("[redacted]")
    await page.locator("#filter").fill("4111")
    await expect(page.locator("#event-count")).to_have_text("0 of 2")
    assert "4111" not in await page.locator("#session").inner_text()
    await say(service, session, "three")
    await page.locator("#filter").fill("")
    await expect(page.locator(".event")).to_have_count(3)


async def test_a_deleted_session_is_shown_as_such(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """Its events stay, the page marks it as deleted, and it asks no more."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await say(service, session, "last words")
    await page.goto(of(url))
    await expect(page.locator(".event")).to_have_count(1)

    await service.delete_session(**KEY)

    await expect(page.locator("#status")).to_have_text("Deleted")
    await expect(page.locator("#events .note")).to_contain_text("was deleted")
    await expect(page.locator(".event .text")).to_have_text("last words")
    assert sum("/changes" in each for each in asked) == 1


async def test_a_session_may_come_later_than_the_page(
    page: Page, url: str, service: MongoSessionService
) -> None:
    """The page waits for a session that is not there yet, and says so."""
    await page.goto(of(url))
    await expect(page.locator("#notice")).to_contain_text("Session not found")

    await service.create_session(**KEY, state={"city": "Turin"})
    await page.get_by_role("button", name="Try now").click()

    await expect(page.locator("#status")).to_have_text("Live")
    await expect(page.locator("#state .row")).to_contain_text("Turin")
