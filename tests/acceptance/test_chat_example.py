"""The chat of examples/fastapi_chat.py, with a model that tests speak for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Locator, Page, expect
from support.adk_tools import with_database
from support.http_server import Client, serving
from support.spoken_model import SpokenModel

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def model() -> SpokenModel:
    return SpokenModel()


@pytest.fixture
def load(
    model: SpokenModel,
    mongodb_uri: str,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[], Any]:
    """Loads the program as a module of its own, on the test's database."""
    monkeypatch.setenv("MONGODB_URI", with_database(mongodb_uri, database))
    monkeypatch.syspath_prepend(EXAMPLES)

    def load() -> Any:
        monkeypatch.delitem(sys.modules, "fastapi_chat", raising=False)
        chat = importlib.import_module("fastapi_chat")
        chat.agent.model = model
        return chat

    return load


@pytest.fixture
def chat(load: Callable[[], Any]) -> Any:
    return load()


@asynccontextmanager
async def running(chat: Any) -> AsyncIterator[str]:
    async with chat.lifespan(chat.app), serving(chat.app) as url:
        yield url


@asynccontextmanager
async def two_windows(chat: Any, page: Page) -> AsyncIterator[tuple[Page, Page]]:
    """A new conversation in two windows of a browser."""
    async with running(chat) as url:
        await page.goto(url)
        await page.get_by_role("button", name="New conversation").click()
        await expect(page.get_by_role("link")).to_have_attribute("aria-current", "page")
        other = await page.context.new_page()
        await other.goto(page.url)
        yield page, other


async def ask(window: Page, text: str) -> None:
    await window.get_by_label("Message").fill(text)
    await window.get_by_label("Message").press("Enter")


async def expect_shown(windows: tuple[Page, ...], *texts: str) -> None:
    """Each window shows these messages, and all of them are stored."""
    for window in windows:
        await expect(window.locator("#messages p")).to_have_text(texts)
        await expect(window.locator("#said p")).to_have_count(0)


def message(window: Page, text: str) -> Locator:
    return window.locator("article.user", has_text=text)


async def press(window: Page, text: str, button: str) -> None:
    """Press a button of a message."""
    await message(window, text).get_by_role("button", name=button, exact=True).click()


async def edit(window: Page, text: str, instead: str) -> None:
    window.once("dialog", lambda asked: asked.accept(instead))
    await press(window, text, "Edit")


async def expect_version(windows: tuple[Page, ...], text: str, words: str) -> None:
    """A message has that between its arrows; or no arrows, for an empty text."""
    for window in windows:
        version = message(window, text).locator("small")
        await expect(version).to_be_visible(visible=bool(words))
        await expect(version).to_have_text(words)


async def answer(model: SpokenModel, *pieces: str) -> None:
    model.say(*pieces)
    model.end_answer()


async def test_an_answer_streams_into_every_window(
    chat: Any, page: Page, model: SpokenModel
) -> None:
    """Words come as they are said, also after a reload; a failure loses no text."""
    async with two_windows(chat, page) as windows:
        page, other = windows
        await ask(page, "<b>Hello</b>")
        model.say("It ", "is ")
        for window in windows:
            await expect(window.locator("#said p")).to_have_text("It is ")
            await expect(window.get_by_role("button", name="Stop")).to_be_visible()
        await other.reload()
        await expect(other.locator("#said p")).to_have_text("It is ")
        model.say("late.")
        model.end_answer()
        await expect_shown(windows, "<b>Hello</b>", "It is late.")
        for window in windows:
            await expect(window.get_by_role("button", name="Stop")).to_be_hidden()

        opened = page.url.partition("#")[2]
        await chat.service.delete_session(
            app_name="chat", user_id="ada", session_id=opened
        )
        await expect(page.get_by_role("link")).to_have_count(0)
        await ask(page, "Too late")
        await expect(page.get_by_role("alert")).to_contain_text("no such session")
        await expect(page.get_by_label("Message")).to_have_value("Too late")


async def test_versions_of_a_message_flip_in_every_window(
    chat: Any, page: Page, model: SpokenModel
) -> None:
    """An edit, an arrow and a question asked again show in both, and after a reload."""
    async with two_windows(chat, page) as windows:
        page, other = windows
        await ask(page, "One?")
        await answer(model, "First.")
        await expect_shown(windows, "One?", "First.")
        await expect_version(windows, "One?", "")

        await edit(page, "One?", "Two?")
        await answer(model, "Second.")
        await expect_shown(windows, "Two?", "Second.")
        await expect_version(windows, "Two?", "2/2")
        for window in windows:
            await expect(window.get_by_role("link")).to_contain_text("(2 versions)")

        await press(other, "Two?", "Previous version")
        await expect_shown(windows, "One?", "First.")
        await expect_version(windows, "One?", "1/2")
        await page.reload()
        await expect_shown(windows, "One?", "First.")
        await press(page, "One?", "Next version")
        await expect_shown(windows, "Two?", "Second.")
        arrow = message(page, "Two?").get_by_role("button", name="Next version")
        await expect(arrow).to_be_focused()

        await press(other, "Two?", "Ask again")
        model.say("Third, ")
        await expect(page.locator("#said p")).to_have_text("Third, ")
        await expect_version(windows, "Two?", "3/3")
        await page.get_by_role("button", name="Stop").click()
        await expect_shown(windows, "Two?", "Third, ")
        await press(page, "Two?", "Next version")  # after the last one comes the first
        await expect_shown(windows, "One?", "First.")
        await press(page, "One?", "Previous version")
        await expect_shown(windows, "Two?", "Third, ")
        for window in windows:
            await expect(window.get_by_role("link")).to_have_count(1)


async def test_a_conversation_goes_on_after_a_restart(
    load: Callable[[], Any], model: SpokenModel
) -> None:
    """Its user alone reads it, and nothing is asked in one that is not there."""
    mine = "/apps/chat/users/ada/sessions"
    message = {"newMessage": {"parts": [{"text": "Hello"}]}}
    for _ in range(2):
        async with (
            running(load()) as url,
            httpx.AsyncClient(base_url=url, trust_env=False) as http,
        ):
            if not (listed := (await http.get(mine)).json()["sessions"]):
                await http.post("/sessions", json={"title": "Trip"})
                listed = (await http.get(mine)).json()["sessions"]
            (session,) = listed
            opened = f"{mine}/{session['session_id']}"
            async with Client(f"{url}{opened}/changes") as window:
                await http.post(f"{opened}/turns", json=message)
                await answer(model, "Hi")
                _, *pushed = await window.take(3)
            eve = {"Cookie": "user=eve"}
            other = await http.get(f"{opened}/changes", headers=eve)
            unknown = await http.post(f"{mine}/none/turns", json=message)

        authors = [each.data["event"]["author"] for each in pushed]
        assert authors == ["user", "agent"]
        assert (other.status_code, unknown.status_code) == (403, 404)
    assert (session["title"], session["revision"]) == ("Trip", 2)
