"""The live page is for everybody: what axe finds wrong with it, and keys alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from google.adk.events import Event
from google.genai import types
from playwright.async_api import Page, expect
from starlette.applications import Starlette
from support import npm
from support.http_server import serving
from support.live_pages import KEY, of

from mongo_session_service import MongoSessionService
from mongo_session_service.http import allow_everyone, live_app

pytestmark = pytest.mark.release

ANSWER = (
    "# Order\n\n**Sun**, see [it](https://example.com)\n\n| a | b |\n|--|--|\n| 1 | 2 |"
)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe, as its package for Node.js brings it."""
    modules = npm.install(tmp_path_factory.mktemp("axe"), "axe-core@4")
    return (modules / "axe-core/axe.min.js").read_text("utf-8")


@pytest.fixture
async def app(service: MongoSessionService) -> Starlette:
    """The page as the command line serves it, which may fork."""
    return live_app(service, authorize=allow_everyone)


@pytest.fixture
async def full(service: MongoSessionService) -> None:
    """Sessions of two apps, and one with all that can be shown of an event."""
    await service.create_session(app_name="quiet", user_id="ada", title="A quiet one")
    session = await service.create_session(
        **KEY, title="Trip", labels={"env": "prod"}, state={"city": "Turin"}
    )
    rows = {"rows": [{"name": f"n{n}", "text": "y" * 30} for n in range(30)]}
    parts = [
        [types.Part(text="Where to?")],
        [types.Part(function_call=types.FunctionCall(id="c", name="find", args=rows))],
        [
            types.Part(
                function_response=types.FunctionResponse(
                    id="c", name="find", response={"error": rows}
                )
            )
        ],
        [types.Part(text="hm", thought=True), types.Part(text=ANSWER)],
    ]
    for number, each in enumerate(parts):
        event = Event(
            author="agent" if number else "user",
            invocation_id="i",
            content=types.Content(role="model", parts=each),
            usage_metadata=types.GenerateContentResponseUsageMetadata(
                prompt_token_count=7, candidates_token_count=3
            ),
            error_code="SAFETY" if number == 2 else None,
            actions={"state_delta": {"user:n": number, "list": [number]}},  # type: ignore[arg-type]
        )
        await service.append_event(session, event)


async def _session(page: Page, url: str) -> None:
    await page.goto(of(url))
    await expect(page.locator(".event")).to_have_count(4)


async def _unfolded(page: Page, url: str) -> None:
    await _session(page, url)
    for summary in await page.locator("summary").all():
        await summary.click()
    await page.get_by_label("Find in the Result").fill("n1")
    await expect(page.locator(".kids .leaf").first).to_be_visible()
    await page.locator(".event").last.hover()


async def _past(page: Page, url: str) -> None:
    await page.goto(f"{of(url)}#r=2")
    await expect(page.locator(".event[aria-current]")).to_be_visible()
    await expect(page.locator("#now")).to_be_visible()


async def _asking(page: Page, url: str) -> None:
    await _past(page, url)
    await page.locator("#fork").click()
    await expect(page.locator("#fork-dialog")).to_be_visible()


async def _keys(page: Page, url: str) -> None:
    await _session(page, url)
    await page.keyboard.press("?")
    await expect(page.locator("#help")).to_be_visible()


async def _apps(page: Page, url: str) -> None:
    await page.goto(url)
    await expect(page.locator("#sessions li")).to_have_count(2)


async def _list(page: Page, url: str) -> None:
    await page.goto(f"{url}/?app_name=weather")
    await expect(page.locator("#sessions .tag")).to_have_text("env=prod")


async def _found(page: Page, url: str) -> None:
    await _list(page, url)
    await page.locator("#picker-filter").fill("Trip")
    await expect(page.locator("#groups li")).to_have_count(1)


async def _missing(page: Page, url: str) -> None:
    await page.goto(of(url, session_id="none"))
    await expect(page.locator("#notice")).to_contain_text("Session not found")


async def _empty(page: Page, url: str) -> None:
    await page.goto(f"{url}/?app_name=nothing")
    await expect(page.locator("#begin")).to_be_visible()


VIEWS: dict[str, Callable[[Page, str], Awaitable[None]]] = {
    view.__name__.strip("_"): view
    for view in (
        *(_session, _unfolded, _past, _asking, _keys),
        *(_apps, _list, _found, _missing, _empty),
    )
}

WIDTHS = {
    "desk": {"width": 1280, "height": 800},
    "phone": {"width": 360, "height": 740},
}


async def _violations(page: Page, axe: str) -> list[Any]:
    """What axe finds, each with the elements that have it."""
    await page.evaluate(axe)
    result = await page.evaluate("axe.run()")
    return [
        (each["id"], each["help"], [node["html"][:200] for node in each["nodes"]])
        for each in result["violations"]
    ]


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_wrong(
    page: Page, url: str, axe: str, scheme: str, width: str
) -> None:
    """In each view, on a desk and on a phone, in light and in dark."""
    await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    await page.set_viewport_size(WIDTHS[width])  # type: ignore[arg-type]
    wrong = {}
    for name, show in VIEWS.items():
        await show(page, url)
        wrong[name] = await _violations(page, axe)
        assert (
            await page.evaluate("document.documentElement.scrollWidth")
            <= WIDTHS[width]["width"]
        ), name

    assert not any(wrong.values()), wrong


async def test_axe_finds_nothing_wrong_with_a_refusal(
    page: Page, service: MongoSessionService, axe: str
) -> None:
    """Where nothing may be read, neither a list nor a session."""
    app = live_app(service, authorize=lambda *_, **__: False)
    async with serving(app) as url:
        for address in (f"{url}?app_name=a&user_id=u", of(url)):
            await page.goto(address)
            await expect(page.locator("#status")).to_have_text("Not allowed")

            assert await _violations(page, axe) == []


@pytest.mark.usefixtures("full")
async def test_keys_alone_lead_through_the_list(page: Page, url: str) -> None:
    """From the search to what it finds, into the session, and back."""
    await _list(page, url)
    focus = page.locator(":focus")
    while await page.evaluate("document.activeElement.id") != "picker-filter":
        await page.keyboard.press("Tab")
    await page.keyboard.type("env=prod")
    await page.keyboard.press("Enter")
    await expect(page.locator("#found")).to_have_text("Found 1 session by label.")
    await page.keyboard.press("Tab")
    await expect(focus).to_have_attribute("title", "monday")
    await page.keyboard.press("Enter")
    await expect(page.locator(".event")).to_have_count(4)
    await page.keyboard.press("j")
    await expect(page.locator(".event").last).to_be_focused()
    await page.go_back()  # to the present
    await page.go_back()
    await expect(page.locator("#sessions .name")).to_have_text(["Trip"])
