"""The live page where messages have versions: arrows, other readers, and the list."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Locator, Page, Route, expect
from starlette.applications import Starlette
from support.conversations import ask, family, talk
from support.http_server import may_read, serving
from support.live_pages import of
from support.one_session import IDS

from mongo_session_service import MongoSessionService
from mongo_session_service.http import allow_everyone, live_app

ROOT = IDS["session_id"]
ANOTHER = "Another version of this conversation is shown now"


@pytest.fixture
def app(service: MongoSessionService) -> Starlette:
    """The page of a reader who may do everything."""
    return live_app(service, authorize=allow_everyone)


@pytest.fixture
async def questions(service: MongoSessionService) -> dict[str, str]:
    """The invocations of a conversation, by what was asked in them."""
    texts = ("One", "Two")
    return dict(zip(texts, await talk(service, *texts), strict=True))


async def expect_asked(page: Page, *texts: str) -> None:
    said = [each for text in texts for each in (text, f"to {text}")]
    await expect(page.locator(".event .text")).to_have_text(said)


def arrows(page: Page) -> Locator:
    return page.locator(".versions")


async def expect_version(page: Page, words: str) -> None:
    await expect(arrows(page)).to_have_attribute("aria-label", f"Version {words}")


async def press(page: Page, label: str) -> None:
    await arrows(page).get_by_role("button", name=label).press("Enter")


async def shown(service: MongoSessionService) -> str:
    """The version that is shown."""
    (branch,) = [each for each in await family(service) if each.is_shown]
    return branch.session_id


@pytest.mark.core
async def test_arrows_show_another_version(
    page: Page, url: str, service: MongoSessionService, questions: dict[str, str]
) -> None:
    """They are at the message where versions part, and show one to everybody."""
    branch, _ = await ask(service, "Three", instead_of=questions["Two"])
    await page.goto(of(url, **IDS))
    await expect_asked(page, "One", "Two")
    await expect_version(page, "1 of 2")
    await expect(page.locator(".event", has=arrows(page))).to_contain_text("Two")

    await arrows(page).get_by_role("button", name="Next version").click()
    await expect_asked(page, "One", "Three")
    await expect_version(page, "2 of 2")
    assert await shown(service) == branch

    await press(page, "Previous version")
    await expect_asked(page, "One", "Two")
    previous = arrows(page).get_by_role("button", name="Previous version")
    await expect(previous).to_be_focused()
    assert await shown(service) == ROOT


async def test_an_arrow_has_the_focus_however_late_versions_are_read(
    page: Page, url: str, service: MongoSessionService, questions: dict[str, str]
) -> None:
    """Also when all events of the version are shown by then."""
    branch, _ = await ask(service, "Three", instead_of=questions["Two"])
    answers: asyncio.Queue[Route] = asyncio.Queue()
    await page.route(f"**/{ROOT}/branches", answers.put)
    await page.goto(of(url, **IDS | {"session_id": branch}))
    await press(page, "Previous version")
    asked = await answers.get()
    await expect_asked(page, "One", "Two")
    await asked.continue_()
    previous = arrows(page).get_by_role("button", name="Previous version")
    await expect(previous).to_be_focused()


async def test_a_page_follows_whoever_shows_another_version(
    page: Page, url: str, service: MongoSessionService, questions: dict[str, str]
) -> None:
    """It says so; one whose reader has chosen a revision only offers to."""
    await page.goto(of(url, **IDS))
    pinned = await page.context.new_page()
    await pinned.goto(f"{of(url, **IDS)}#r=1")
    for each in (page, pinned):
        await expect_asked(each, "One", "Two")
        await expect(each.locator("#status")).to_have_text("Live")
    await expect(pinned.locator("#moment-words")).to_have_text("after event 1")

    branch, _ = await ask(service, "Three", instead_of=questions["Two"])
    await expect_asked(page, "One", "Three")
    followed = f"{ANOTHER}, and this page has followed."
    await expect(page.locator("#notice-text")).to_have_text(followed)
    await expect(pinned.locator("#notice-text")).to_have_text(f"{ANOTHER}.")
    await expect_asked(pinned, "One", "Two")
    await expect_version(pinned, "1 of 2")
    await pinned.get_by_role("button", name="Show it").click()
    await expect_asked(pinned, "One", "Three")

    await page.get_by_role("button", name="Go back").click()
    await expect_asked(page, "One", "Two")
    assert await shown(service) == branch
    await service.show_branch(**IDS)
    await expect_asked(pinned, "One", "Two")


async def test_who_may_only_read_goes_to_a_version_alone(
    page: Page, service: MongoSessionService, questions: dict[str, str]
) -> None:
    """The arrows lead there, and nothing is shown to others."""
    branch, _ = await ask(service, "Three", instead_of=questions["Two"])
    async with serving(live_app(service, authorize=may_read)) as url:
        await page.goto(of(url, **IDS))
        await press(page, "Next version")
        await expect_asked(page, "One", "Three")
        await press(page, "Next version")
        await expect_asked(page, "One", "Two")
    assert await shown(service) == branch


async def test_the_list_has_one_row_of_a_family(
    page: Page, url: str, service: MongoSessionService, questions: dict[str, str]
) -> None:
    """It leads to the version that is shown, and counts them."""
    await page.goto(f"{url}/?app_name={IDS['app_name']}")
    row = page.locator("#sessions li")
    await expect(row).to_contain_text("4 events")
    for text in ("Three", "Four"):
        branch, _ = await ask(service, text, instead_of=questions["Two"])
    await expect(row.locator(".tag")).to_have_text(["3 versions"])
    link = row.locator(f"a[href$='={branch}']")
    await expect(link).to_have_count(1)
    await page.reload()
    await expect(link).to_have_count(1)

    await ask(service, "Hidden")  # in the first version
    await ask(service, "Five", session_id=branch)
    await expect(row).to_contain_text("6 events")
    await expect(link).to_have_count(1)
    await service.show_branch(**IDS)
    await expect(row.locator(f"a[href$='={ROOT}']")).to_have_count(1)
    await expect(row).to_contain_text("6 events")
