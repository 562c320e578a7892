"""Pictures of the live page for the documentation, of sessions made for them."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from google.adk.events import Event, EventActions
from google.genai import types
from playwright.async_api import Page, async_playwright

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.http import allow_everyone, live_app

SHOP, USER, SESSION = "shop", "ada", "order-1099"
NOW = datetime(2026, 5, 4, 10, 0, tzinfo=UTC)
DESK = {"width": 1280, "height": 790}

STATUS = """## Order 1099

It was **shipped** yesterday and arrives on *Tuesday*.

| item | price |
|------|------:|
| apples, 2 kg | 6.40 |
| pears | 3.20 |

Shall I have it left with a neighbour?"""

ORDER = {
    "order": 1099,
    "status": "shipped",
    "items": [
        {"name": "apples, 2 kg", "price": 6.4},
        {"name": "pears", "price": 3.2},
    ],
    "carrier": {"name": "Snail Mail", "tracking": "SM-31337"},
}

OTHERS = (
    ("Refund for order 1042", "bob", {"topic": "refund", "env": "prod"}, 95),
    ("Where is my parcel?", "carla", {"topic": "delivery", "env": "prod"}, 61),
    (None, "dmitri", {"env": "staging"}, 34),
    ("Change of address", "ada", {"topic": "account", "env": "prod"}, 12),
)
"""Other sessions: title, user, labels, and minutes since they changed."""


def call(name: str, **args: Any) -> types.Part:
    """A tool call."""
    return types.Part(function_call=types.FunctionCall(id=name, name=name, args=args))


def result(name: str, response: dict[str, Any]) -> types.Part:
    """A tool's result."""
    answer = types.FunctionResponse(id=name, name=name, response=response)
    return types.Part(function_response=answer)


def turns() -> list[tuple[str, int, list[types.Part], dict[str, Any], int]]:
    """Author, seconds, parts, what is set, and tokens of each event."""
    return [
        ("user", 0, [types.Part(text="Where is my order?")], {}, 0),
        ("shop_agent", 1, [call("find_orders", customer="ada")], {}, 412),
        ("shop_agent", 2, [result("find_orders", {"orders": [1099]})], {}, 0),
        (
            "shop_agent",
            4,
            [types.Part(text="You have one open order, **1099**.")],
            {"order": 1099, "user:orders_seen": 1},
            530,
        ),
        ("user", 31, [types.Part(text="Yes, please.")], {}, 0),
        ("shop_agent", 32, [call("get_order", order=1099)], {}, 611),
        ("shop_agent", 33, [result("get_order", ORDER)], {}, 0),
        (
            "shop_agent",
            35,
            [types.Part(text=STATUS)],
            {
                "status": "shipped",
                "parcel": {"carrier": "Snail Mail", "day": "Tuesday"},
                "user:orders_seen": 2,
            },
            874,
        ),
        ("user", 62, [types.Part(text="No, I am at home.")], {}, 0),
        (
            "shop_agent",
            64,
            [types.Part(text="Then all is set. Anything else?")],
            {"status": "closed"},
            902,
        ),
    ]


async def fill(service: MongoSessionService) -> None:
    """The sessions that the pictures show."""
    for title, user, labels, minutes in OTHERS:
        other = await service.create_session(
            app_name=SHOP,
            user_id=user,
            session_id=f"chat-{user}-{minutes}",
            title=title,
            labels=labels,
        )
        at = NOW.timestamp() - minutes * 60
        for number in range(1 + minutes % 7):
            content = types.UserContent("Hello")
            event = Event(author="user", timestamp=at + number, content=content)
            await service.append_event(other, event)
    session = await service.create_session(
        app_name=SHOP,
        user_id=USER,
        session_id=SESSION,
        title="Where is my order?",
        labels={"topic": "delivery", "env": "prod"},
        state={"status": "new", "user:name": "Ada", "app:currency": "EUR"},
    )
    turn = 0
    for author, seconds, parts, delta, tokens in turns():
        turn += author == "user"
        used = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=tokens, candidates_token_count=tokens // 9
        )
        event = Event(
            author=author,
            invocation_id=f"turn-{turn}",
            timestamp=NOW.timestamp() - 75 + seconds,
            content=types.Content(role="model", parts=parts),
            actions=EventActions(state_delta=delta),
            usage_metadata=used if tokens else None,
            model_version="model-1" if tokens else None,
        )
        await service.append_event(session, event)


@asynccontextmanager
async def serving(service: MongoSessionService) -> AsyncIterator[str]:
    """The live page on a port of this machine."""
    app = live_app(service, authorize=allow_everyone)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            await task


async def take(page: Page, url: str, folder: Path) -> None:
    """Both pictures."""
    await page.clock.set_fixed_time(NOW)
    names = f"app_name={SHOP}&user_id={USER}&session_id={SESSION}"
    await page.goto(f"{url}/?{names}#r=8")
    await page.locator(".event[aria-current]").wait_for()
    await page.locator("#state-then .row").first.wait_for()
    await page.screenshot(path=folder / "live.png", animations="disabled")
    await page.set_viewport_size({"width": DESK["width"], "height": 620})
    await page.goto(f"{url}/?app_name={SHOP}")
    await page.locator("#sessions li").last.wait_for()
    await page.screenshot(path=folder / "live-list.png", animations="disabled")


async def main(folder: Path) -> None:
    """Make the pictures."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("screenshots: there is no chromium; run scripts/setup dev.")
    with EmbeddedReplicaSet() as servers:
        uri = servers.uri.replace("/?", "/shop?")
        async with (
            MongoSessionService(uri) as service,
            async_playwright() as playwright,
        ):
            await fill(service)
            browser = await playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox"]
            )
            page = await browser.new_page(viewport=DESK, timezone_id="UTC")  # type: ignore[arg-type]
            async with serving(service) as url:
                await take(page, url, folder)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
