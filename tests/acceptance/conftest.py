"""Programs from elsewhere: a real browser on the live page, and MongoDB's shell."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.adk.sessions import Session
from playwright.async_api import Browser, Page, async_playwright, expect
from starlette.applications import Starlette
from support import npm
from support.http_server import may_read, serving
from support.live_pages import KEY

from mongo_session_service import MongoSessionService
from mongo_session_service.http import live_app

CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

expect.set_options(timeout=15_000)


@pytest.fixture(scope="session")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of MongoDB's shell, as its package for Node.js brings it."""
    return npm.install(tmp_path_factory.mktemp("mongosh"), "mongosh@2") / ".bin"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A headless Chromium, which ``scripts/setup dev`` installs."""
    path = shutil.which("chromium")
    assert path, "The live page is tested in Chromium: run scripts/setup dev."
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=CHROMIUM)
        yield browser
        await browser.close()


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page in which no script may fail, and no policy may be broken."""
    context = await browser.new_context(permissions=["clipboard-read"])
    page = await context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda told: complaints.append(told.text))
    yield page
    await context.close()
    # A connection that is cut or refused is what some tests are about.
    said = [each for each in complaints if "Failed to load resource" not in each]
    assert said == []


@pytest.fixture
def app(service: MongoSessionService) -> Starlette:
    """The app that the command line serves."""
    return live_app(service, authorize=may_read)


@pytest.fixture
async def url(app: Starlette) -> AsyncIterator[str]:
    async with serving(app) as url:
        yield url


@pytest.fixture
async def session(service: MongoSessionService) -> Session:
    """A session that nothing has happened in."""
    state = {"city": "Turin", "user:name": "Ada"}
    return await service.create_session(**KEY, state=state)


@pytest.fixture
def database(new_database: str) -> str:
    """A database that is not there before."""
    return new_database


@pytest.fixture
def at(mongodb_uri: str, database: str) -> tuple[str, ...]:
    """The options of a command that name the database."""
    return ("--uri", mongodb_uri, "--database", database)
