"""The support desk that the tutorial builds, in examples/support_desk, in a browser."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest
from playwright.async_api import Page, expect
from pymongo import MongoClient
from support.adk_tools import with_database
from support.doc_blocks import blocks_of
from support.http_server import serving

ROOT = Path(__file__).parents[2]
DESK = ROOT / "examples" / "support_desk"


@pytest.fixture
def desk(
    mongodb_uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    """The program, in which nothing has run yet."""
    monkeypatch.setenv("MONGODB_URI", with_database(mongodb_uri, database))
    monkeypatch.syspath_prepend(DESK)
    for name in ("clerk", "desk"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import desk  # noqa: PLC0415  from the folder of the example

    return desk


@asynccontextmanager
async def served(desk: ModuleType) -> AsyncIterator[str]:
    async with desk.lifespan(desk.app), serving(desk.app) as url:
        yield url


async def ask(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.get_by_role("button", name="Send").click()


async def test_a_customer_asks_and_a_colleague_confirms(
    desk: ModuleType, page: Page, database: str, admin: MongoClient
) -> None:
    """An answer survives a reload, is stopped, waits in the inbox, and is booked."""
    async with served(desk) as url:
        await page.goto(url)
        await ask(page, "Where is my order?")
        beginning = "clerk: This is your message 1. I am"
        await expect(page.locator("#said")).to_contain_text(beginning)
        await page.reload()
        await expect(page.locator("#said")).to_contain_text(beginning)
        await page.get_by_role("button", name="Stop").click()
        stored = page.locator("#stored p")
        await expect(stored).to_have_count(2)
        await expect(stored.last).to_contain_text(beginning)
        await expect(page.get_by_role("alert")).to_be_empty()

        await ask(page, "Please refund A7")
        inbox = await page.context.new_page()
        await inbox.goto(f"{url}/inbox")
        await expect(inbox.get_by_role("listitem")).to_contain_text("ada: refund A7?")
        await inbox.get_by_role("button", name="Confirm").click()
        await expect(inbox.get_by_role("listitem")).to_have_count(0)
        await expect(stored.last).to_have_text("clerk: Order A7 is refunded.")

        consumer = desk.service.consumer("booking", app_name="desk")
        await consumer.run(desk.book, transactional=True, until_caught_up=True)
    (booked,) = admin[database]["refunds"].find({}, {"_id": False})
    assert booked == {"customer": "ada", "result": "Order A7 is refunded."}


@pytest.mark.parametrize("name", ["clerk.py", "desk.py", "desk.html", "inbox.html"])
def test_the_tutorial_ends_with_this_folder(name: str) -> None:
    """What its reader saves, step by step, is in the end what is in examples/."""
    saved = ""
    for block in blocks_of(ROOT / "docs" / "tutorial.md"):
        file, _, is_continued = block.title.partition(", ")
        if file == name:
            saved = saved + "\n\n" + block.text if is_continued else block.text

    assert saved == (DESK / name).read_text()
