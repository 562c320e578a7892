"""The live page's connection: what it says of it is so, and it is one alone."""

from __future__ import annotations

import asyncio

import pytest
from google.adk.events import Event
from google.adk.sessions import Session
from playwright.async_api import Page, Route, expect
from support.http_server import may_read, serving
from support.live_pages import KEY, hide, of, reveal, revisions, say
from support.subscriptions import until

from mongo_session_service import MongoSessionService
from mongo_session_service.http import live_app

TABS = 8
"""More than the six connections that a browser has for a host."""


async def test_a_stream_is_live_once_something_has_arrived(
    page: Page, service: MongoSessionService, session: Session
) -> None:
    """An answer that begins, and then holds its content back, is not."""
    await say(service, session, "hello")
    app = live_app(service, authorize=may_read)
    begun, released = asyncio.Event(), asyncio.Event()

    async def buffering(scope: dict, receive: object, send: object) -> None:  # type: ignore[type-arg]
        async def send_late(message: dict) -> None:  # type: ignore[type-arg]
            if scope["path"].endswith("/changes") and "body" in message:
                begun.set()
                await released.wait()
            await send(message)  # type: ignore[operator]

        await app(scope, receive, send_late)  # type: ignore[arg-type]

    async with serving(buffering) as url:
        async with page.expect_response("**/changes?*"):
            await page.goto(of(url))
        await begun.wait()
        await expect(page.locator("#status")).to_have_text("Connecting")
        await expect(page.locator("#events-empty")).to_have_text(
            "Nothing is loaded yet."
        )
        released.set()
        await expect(page.locator("#status")).to_have_text("Live")
        await expect(page.locator(".event .text")).to_have_text("hello")


async def test_a_hidden_tab_gives_its_connection_back(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """After a minute; when it is shown again it has all that it has missed, once."""
    await page.clock.install()
    await page.goto(of(url))
    await say(service, session, "seen")
    await expect(page.locator(".event")).to_have_count(1)

    await hide(page)
    await page.clock.fast_forward(30_000)
    await say(service, session, "unseen")
    await expect(page).to_have_title("(1) monday")
    await page.clock.fast_forward(31_000)
    await expect(page.locator("#status")).to_have_text("Paused while hidden")
    await until(lambda: not service.feed_stats().subscriptions)
    for number in range(3):
        await say(service, session, f"missed {number}")
    await reveal(page)

    await expect(page.locator(".event")).to_have_count(5)
    await expect(page.locator("#status")).to_have_text("Live")
    assert await revisions(page) == [1, 2, 3, 4, 5]


async def test_a_tab_that_was_away_shows_a_session_made_anew(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """With nothing of the former one, though it has more events than that had."""
    await page.clock.install()
    await say(service, session, "former")
    await page.goto(of(url))
    await expect(page.locator(".event .text")).to_have_text("former")
    await hide(page)
    await page.clock.fast_forward(61_000)
    await expect(page.locator("#status")).to_have_text("Paused while hidden")
    await service.delete_session(**KEY)
    session = await service.create_session(**KEY, state={"city": "Turin"})
    for text in ("new", "newer"):
        await say(service, session, text)
    await reveal(page)

    await expect(page.locator(".event .text")).to_have_text(["new", "newer"])
    await expect(page.locator("#status")).to_have_text("Live")
    city = page.locator('#state .row[data-key="city"]')
    await expect(city).to_contain_text("Turin")
    await expect(page.locator("body")).not_to_have_class("gone")
    await say(service, session, "newest")
    await expect(page.locator(".event")).to_have_count(3)


async def test_there_may_be_more_tabs_than_connections(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """Each tab that is looked at is live, and none is marked live that is not."""
    tabs = [page]
    await page.goto(of(url))
    while len(tabs) < TABS:
        await expect(tabs[-1].locator("#status")).to_have_text("Live")
        await hide(tabs[-1])
        tabs.append(await page.context.new_page())
        await tabs[-1].goto(of(url))
    for number, tab in enumerate(tabs):
        await hide(tabs[number - 1])
        await reveal(tab)
        await expect(tab.locator("#status")).to_have_text("Live")
        await say(service, session, f"to {number}")
        await expect(tab.locator(".event .text").last).to_have_text(f"to {number}")

    states = [await tab.locator("#status").text_content() for tab in tabs]
    assert set(states) == {"Live", "Paused while hidden"}
    await until(lambda: service.feed_stats().subscriptions == states.count("Live"))


async def test_the_history_goes_on_where_it_was_cut(
    page: Page, service: MongoSessionService, session: Session
) -> None:
    """The latest events are there first; the rest comes once, and is numbered."""
    count = 1000
    for number in range(count):
        event = Event(author="agent", invocation_id=f"i{number // 3}")
        await service.append_event(session, event)
    app = live_app(service, authorize=may_read)
    cut = asyncio.Event()
    pages = 0

    async def cutting(scope: dict, receive: object, send: object) -> None:  # type: ignore[type-arg]
        nonlocal pages
        pages += scope["path"].endswith("/events")

        async def send_some(message: dict) -> None:  # type: ignore[type-arg]
            if scope["path"].endswith("/events") and pages > 5 and not cut.is_set():
                await cut.wait()
                raise OSError
            await send(message)  # type: ignore[operator]

        await app(scope, receive, send_some)  # type: ignore[arg-type]

    async with serving(cutting) as url:
        await page.goto(f"{of(url)}#r=5")
        last = page.locator(f'.event[data-revision="{count}"]')
        await expect(last).to_be_in_viewport()
        await expect(page.locator(".turn-head .fold").last).to_have_text("Turn")
        await expect(page.locator("#moment-words")).to_have_text("now")
        await service.append_event(session, Event(author="agent", invocation_id="new"))
        cut.set()

        await expect(page.locator("#event-count")).to_have_text(f"{count + 1:,}")
        await expect(page.locator(".event[aria-current]")).to_be_in_viewport()
        await expect(page.locator("#moment-words")).to_have_text("after event 5")
        assert (await revisions(page))[:10] == [*range(1, 11)]
        heads = page.locator(".turn-head .fold")
        await expect(heads.first).to_have_text("Turn 1")
        await page.keyboard.press("G")
        await expect(heads.last).to_have_text("Turn 335")


@pytest.mark.usefixtures("session")
async def test_state_that_is_not_there_yet_is_not_empty(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """What is loaded, and what could not be, looks like that; there is a second try."""
    await say(service, session, "one", city="Rome")
    answers: asyncio.Queue[Route] = asyncio.Queue()
    await page.route("**/monday?at_revision=*", answers.put)
    await page.goto(of(url))
    await page.locator(".event .text").click()
    asked = await answers.get()
    pending = page.locator("#state-pending")
    await expect(pending).to_contain_text("Loading the state then.")
    await expect(page.locator("#state-empty")).to_be_hidden()
    await asked.fulfill(status=503, json={"detail": "MongoDB is unavailable."})
    await expect(pending).to_contain_text(
        "could not be loaded. MongoDB is unavailable."
    )
    await expect(page.locator("#state-empty")).to_be_hidden()

    await page.get_by_role("button", name="Try again").click()
    await (await answers.get()).continue_()

    await expect(pending).to_be_hidden()
    row = page.locator('#state-then [data-key="city"]')
    await expect(row).to_contain_text('city: "Rome"')
