"""The list of the live page: found by the server, and kept up to date by the feed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from google.adk.agents import LlmAgent
from playwright.async_api import Page, expect
from starlette.requests import Request
from support import waiting
from support.http_server import serving
from support.live_pages import ask_clock, say
from support.spoken_model import SpokenModel

from mongo_session_service import MongoSessionService
from mongo_session_service.http import live_app

OWN = {"app_name": "weather", "user_id": "ada"}


async def create(service: MongoSessionService, session_id: str, **more: Any) -> Any:
    return await service.create_session(**{**OWN, "session_id": session_id, **more})


@pytest.fixture
async def own_app(service: MongoSessionService) -> AsyncIterator[str]:
    """An own app that has the page below a path, for Ada."""

    def is_adas(_: Request, *, user_id: str, **__: object) -> bool:
        return user_id == "ada"

    app = FastAPI()
    app.mount("/live", live_app(service, authorize=is_adas))
    async with serving(app) as url:
        yield f"{url}/live"


async def test_the_list_has_pages(
    page: Page, url: str, service: MongoSessionService
) -> None:
    """The next page comes when the end is in sight; each session is there once."""
    await asyncio.gather(*(create(service, f"s{n}") for n in range(120)))
    await page.goto(f"{url}/?app_name=weather")
    rows = page.locator("#sessions li")
    await expect(rows).to_have_count(50)

    await rows.last.scroll_into_view_if_needed()
    await expect(rows).to_have_count(100)
    await rows.last.scroll_into_view_if_needed()
    await expect(rows).to_have_count(120)

    await expect(page.locator("#more")).to_be_hidden()
    assert len(set(await page.locator("#sessions .name").all_text_contents())) == 120


async def test_waiting_and_running_sessions_have_a_badge(
    page: Page, url: str, service: MongoSessionService
) -> None:
    """It goes when the person has answered, or the turn has ended."""
    session = await create(service, "monday")
    await service.append_event(session, waiting.ask("c1", "c2"))
    await page.goto(f"{url}/?app_name=weather")
    badges = page.locator("#sessions .labels .tag")
    await expect(badges).to_have_text(["waits for a person (2)"])
    await service.append_event(session, waiting.answer("c1"))
    await expect(badges).to_have_text(["waits for a person"])
    await service.append_event(session, waiting.answer("c2"))
    await expect(badges).to_have_count(0)

    model = SpokenModel()
    running = await ask_clock(service, LlmAgent(name="clock", model=model))
    await expect(badges).to_have_text(["running"])
    await page.reload()
    await expect(badges).to_have_text(["running"])
    model.end_answer()
    await running.result()
    await expect(badges).to_have_count(0)


async def test_changed_sessions_move_to_the_top(
    page: Page, url: str, service: MongoSessionService
) -> None:
    """A session written to moves up, also from a later page; a deleted one goes."""
    sessions = [await create(service, f"s{n}", title=f"Nr {n}") for n in range(60)]
    await page.goto(f"{url}/?app_name=weather")
    names = page.locator("#sessions .name")
    await expect(names.first).to_have_text("Nr 59")

    await say(service, sessions[58], "hello")
    await expect(names.first).to_have_text("Nr 58")
    await expect(page.locator("#sessions .side").first).to_contain_text("1 event")
    await say(service, sessions[0], "hello")
    await expect(names.first).to_have_text("Nr 0")
    await create(service, "new", labels={"env": "prod"})
    await expect(names.first).to_have_text("new")
    await expect(page.locator("#sessions .tag").first).to_have_text("env=prod")
    await service.delete_session(**OWN, session_id="s58")
    await expect(page.get_by_text("Nr 58", exact=True)).to_have_count(0)

    await expect(names.nth(2)).to_have_text("Nr 59")
    await service.update_session(**OWN, session_id="s59", title="Renamed")
    await expect(names.nth(2)).to_have_text("Renamed")


async def test_an_idle_list_asks_for_nothing(
    page: Page, url: str, service: MongoSessionService
) -> None:
    """It subscribes to changes: the page asks once for a list, and once for those."""
    await create(service, "s")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("?")[0]))
    await page.clock.install()
    await page.goto(f"{url}/?app_name=weather")
    await expect(page.locator("#sessions .name")).to_have_text(["s"])
    await page.clock.run_for(30_000)

    assert asked.count(f"{url}/apps/weather/sessions") == 1
    assert asked.count(f"{url}/apps/weather/changes") == 1


async def test_a_search_names_the_field_that_matched(
    page: Page, url: str, service: MongoSessionService
) -> None:
    """By exact title, id, user and label; a link of it opens the session."""
    await create(service, "trip", labels={"env": "prod"})
    await create(service, "x", title="trip")
    await create(service, "y", user_id="trip")
    await page.goto(f"{url}/?app_name=weather")
    search, found = page.locator("#picker-filter"), page.locator("#found")
    await expect(page.locator("#sessions li")).to_have_count(3)

    await search.fill("trip")
    await expect(found).to_have_text(
        "Found 1 session by title, 1 session by ID, 1 session by user."
    )
    await expect(page.locator("#groups h2")).to_have_text(
        ["By title", "By ID", "By user"]
    )
    await expect(page.locator("#listing")).to_be_hidden()
    await search.fill("env=prod")
    await expect(found).to_have_text("Found 1 session by label.")
    await search.fill("tri")
    await expect(found).to_have_text(re.compile("^No session has exactly this as"))
    await search.fill("")
    await expect(page.locator("#sessions li")).to_have_count(3)
    await expect(page.locator("#sessions")).to_be_visible()
    await search.fill("env=prod")
    await page.locator("#groups a").click()
    await expect(page.locator("#where .name")).to_have_text("trip")


async def test_without_an_app_the_apps_are_shown(
    page: Page, url: str, service: MongoSessionService
) -> None:
    """Each with its count and latest session; one leads to its list and back."""
    await page.goto(url)
    await expect(page.locator("#picker-text")).to_contain_text("There are none yet")
    begin = page.locator("#begin-code")
    await expect(begin).to_contain_text('create_session(app_name="my_app"')

    await create(service, "s")
    await expect(page.locator("#sessions .name")).to_have_text(["s"])
    await create(service, "q", app_name="quiet", title="A quiet one")
    await expect(page.locator("#picker-title")).to_have_text("Apps")
    await expect(page.locator("#sessions .name")).to_have_text(["quiet", "weather"])
    row = page.locator("#sessions li").first
    await expect(row).to_contain_text("latest: A quiet one")
    await expect(row).to_contain_text("1 session")
    await create(service, "r", app_name="quiet")
    await expect(row).to_contain_text("2 sessions")

    await row.locator("a").click()
    await expect(page.locator("#sessions .name")).to_have_text(["r", "A quiet one"])
    await page.get_by_role("link", name="All apps").click()
    await expect(page.locator("#picker-title")).to_have_text("Apps")


async def test_the_page_reports_that_a_list_may_not_be_read(
    page: Page, own_app: str
) -> None:
    """It does not look as if there were no sessions."""
    await page.goto(f"{own_app}?app_name=weather&user_id=bob")

    await expect(page.locator("#status")).to_have_text("Not allowed")
    await expect(page.locator("#notice-text")).to_have_text("You may not do this.")
    await expect(page.locator("#begin")).to_be_hidden()
    assert await page.locator("main:visible input:visible").count() == 0
