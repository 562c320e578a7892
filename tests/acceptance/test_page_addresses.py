"""What pages of the examples take from their address: an id, and no place to ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Page, Request, Route

EXAMPLES = Path(__file__).parents[2] / "examples"
SITE = "http://site.test"
ANSWERS = {
    "/customers/ada": "/apps/desk/users/ada/sessions/new",
    "/mine": "/apps/live_turns/users/ada/sessions",
    "/sessions": "new",
    "/me": {"app_name": "chat", "user_id": "ada"},
}
HASHES = [
    "#http://elsewhere.test/x",
    "#//elsewhere.test/x",
    "#x/../../../../admin?y=",
    "#..",
    "#%2e%2e/admin",
    "#x\\\\..\\\\admin",
]


@pytest.mark.parametrize(
    "name", ["live_turns.html", "support_desk/desk.html", "fastapi_chat.html"]
)
async def test_a_page_asks_nothing_elsewhere(page: Page, name: str) -> None:
    """Whatever link has led to it: it opens a stream of its own user's, and no more."""
    asked: list[str] = []

    async def answer(route: Route, request: Request) -> None:
        path = request.url.removeprefix(SITE)
        if path == "/":
            html = (EXAMPLES / name).read_text(encoding="utf-8")
            return await route.fulfill(body=html, content_type="text/html")
        asked.append(request.url)
        if path in ANSWERS:
            return await route.fulfill(body=json.dumps(ANSWERS[path]))
        return await route.fulfill(status=404, body="{}")

    await page.route("**/*", answer)
    for each in HASHES:
        asked.clear()
        async with page.expect_request("**/changes?*"):
            await page.goto(f"{SITE}/{each}")
        places = [it.removeprefix(SITE).partition("?")[0] for it in asked]
        own = [it for it in places if it not in ANSWERS]
        assert own
        assert all(it.startswith("/apps/") and "/users/ada/" in it for it in own)
        assert not any(part in str(asked) for part in ("admin", "elsewhere", ".."))
        await page.goto("about:blank")


def test_no_page_takes_more_than_an_id_from_its_hash() -> None:
    """Also those that a build puts together."""
    docs = EXAMPLES.parent / "docs"
    pages = [*EXAMPLES.rglob("*.html"), *EXAMPLES.rglob("*.jsx"), *docs.rglob("*.md")]
    taken = [
        line
        for each in pages
        for line in each.read_text(encoding="utf-8").splitlines()
        if "location.hash.slice" in line
    ]
    assert len(taken) == 6
    assert all("/^[\\w-]+$/.exec(location.hash.slice(1)) ??" in line for line in taken)
