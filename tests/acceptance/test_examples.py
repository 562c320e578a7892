"""The programs in examples/, each run twice as a user runs them."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from google.adk.cli.fast_api import get_fast_api_app
from playwright.async_api import Locator, Page, expect
from support.adk_tools import forget_services, with_database
from support.http_server import serving
from support.patience import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))
MOST_LINES = 120
LONGER = {"fastapi_chat.html": 250, "assistant_ui.jsx": 180}  # whole chats

# Lines that each program prints that ends by itself, in its first run and its second.
LISTED = [
    "['Trip to Oslo', 'Trip to Lisbon']",
    "['Trip to Turin']",
    "in summer: ['Trip to Lisbon', 'Trip to Turin']",
    "to Oslo: ['Trip to Oslo']",
]
FORKED = [
    "after two events: {'city': 'Lisbon'}",
    "the session: ['Turin', 'Lisbon', 'Oslo']",
    "its fork: ['Turin', 'Porto']",
]
PAID = "['user', 'payments', 'shop_agent'] {'is_paid': True}"
SEALED = "MongoDB holds: {'sealed': 'gAAAA"
SAME = "Compared: 3. Different: 0."
SEARCHED = ["Found: ['I live in Lisbon.']", "When it is deleted: []"]
REMEMBERED = ["Remembered: ['I live in Lisbon.']", "When it is deleted: []"]
EXPORTED = ["Read back, and compared. Different: 0."]
PRINTED = {
    "quickstart.py": (["Run 1. Events stored: 1."], ["Run 2. Events stored: 2."]),
    "adk_runner.py": (
        [
            "This is message 2 of this session.",
            "Events stored: 6. State: {'user:city': 'Lisbon'}",
        ],
        [
            "This is message 4 of this session.",
            "Events stored: 12. State: {'user:city': 'Lisbon'}",
        ],
    ),
    "list_sessions.py": (LISTED, LISTED),
    "fork_session.py": (FORKED, FORKED),
    "second_writers.py": (
        ["the agent answers: This is message 1 of this session.", PAID],
        ["the agent answers: This is message 2 of this session.", PAID],
    ),
    "usage.py": (["ada: 2 answers, 240"], ["ada: 4 answers, 480"]),
    "search.py": (SEARCHED, SEARCHED),
    "memory.py": (REMEMBERED, REMEMBERED),
    "encryption.py": (
        ["The app reads: {'visits': 1, 'diagnosis': 'influenza'}", SEALED],
        ["The app reads: {'visits': 2, 'diagnosis': 'influenza'}", SEALED],
    ),
    "import_from_sql.py": (
        ["Sessions in MongoDB: 1. Events moved: 3.", SAME],
        ["Sessions in MongoDB: 1. Events moved: 0.", SAME],
    ),
    "export_jsonl.py": (EXPORTED, EXPORTED),
}
ENDLESS = {
    *("watch.py", "consumer_worker.py", "sidebar.py"),
    "fastapi_chat.py",  # in test_chat_example.py
    "live_turns.py",  # in test_live_turns_example.py
    *("adk_server.py", "ai_sdk.py"),  # in test_front_ends.py
}


@pytest.fixture
def uri(
    mongodb_uri: str, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The test's own database, in ``$MONGODB_URI``, and a folder to work in."""
    uri = with_database(mongodb_uri, database)
    monkeypatch.setenv("MONGODB_URI", uri)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.syspath_prepend(EXAMPLES)
    return uri


def load(name: str) -> ModuleType:
    """An example as a module, in which nothing has run yet."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@asynccontextmanager
async def running(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[], Any]]:
    """An endless example while it runs; what is given awaits its next line."""
    module = load(name)
    lines: asyncio.Queue[str] = asyncio.Queue()
    monkeypatch.setattr(
        module,
        "print",
        lambda *said: lines.put_nowait(" ".join(map(str, said))),
        raising=False,
    )
    task = asyncio.create_task(module.main())
    try:
        yield lambda: asyncio.wait_for(lines.get(), PATIENCE)
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", PRINTED)
@pytest.mark.usefixtures("uri")
def test_an_example_runs_twice(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program prints what it shows, and the second run continues from the first."""
    monkeypatch.setattr(sys, "argv", [name])
    if name == "export_jsonl.py":
        asyncio.run(load("quickstart").main())
    for printed in PRINTED[name]:
        with suppress(SystemExit):
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        assert "\n".join(printed) in capsys.readouterr().out


@pytest.mark.usefixtures("uri")
async def test_the_watch_example_prints_commits_of_other_programs(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names its database, and prints what is committed from then on."""
    quickstart = load("quickstart")
    for run in (1, 2):
        async with running("watch", monkeypatch) as next_line:
            assert f"Watching database {database}." in await next_line()
            await quickstart.main()
            if run == 1:
                assert await next_line() == "created   my_app/ada/one "
            assert await next_line() == (f"appended  my_app/ada/one {{'runs': {run}}}")


@pytest.mark.usefixtures("uri")
async def test_the_worker_resumes_after_the_last_change_it_handled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGTERM ends it once its change is handled; its next run does not repeat it."""
    quickstart = load("quickstart")
    for run in (1, 2):
        await quickstart.main()
        module = load("consumer_worker")
        lines: asyncio.Queue[str] = asyncio.Queue()
        monkeypatch.setattr(module, "print", lines.put_nowait, raising=False)
        async with asyncio.timeout(PATIENCE):
            task = asyncio.create_task(module.main())
            assert await lines.get() == f"handled one {run}: {{'runs': {run}}}"
            os.kill(os.getpid(), signal.SIGTERM)
            await task
        assert lines.empty()


@pytest.mark.usefixtures("uri")
async def test_the_sidebar_is_kept_up_to_date_in_every_window(page: Page) -> None:
    """What one window creates, renames or deletes; pages on scroll; search by title.

    A page that cannot be loaded is asked for again.
    """
    sidebar = load("sidebar")
    mine = {"app_name": "sidebar", "user_id": "ada"}
    async with sidebar.lifespan(sidebar.app), serving(sidebar.app) as url:
        made = [
            await sidebar.service.create_session(**mine, title=f"Nr {n}")
            for n in range(120)
        ]
        await sidebar.service.create_session(app_name="sidebar", user_id="eve")
        other = await page.context.new_page()
        for window in (page, other):
            await window.goto(url)
            await expect(rows(window).first).to_contain_text("Nr 119")
        for session in (made[0], made[-1]):  # the first is on a page to come
            await sidebar.service.update_session(
                **mine, session_id=session.id, title="New"
            )
        await expect(rows(page).first).to_contain_text("New (0)")
        failure = {"status": 503, "json": {"detail": "Try again."}}
        await page.route(
            "**/sessions?*page_token*", lambda it: it.fulfill(**failure), times=1
        )
        await page.evaluate("document.querySelector('nav').scrollTo(0, 1e6)")
        await expect(page.get_by_role("status")).to_have_text("Try again.")
        await page.evaluate("document.querySelector('nav').scrollTo(0, 0)")
        await page.evaluate(
            "new Promise(it => requestAnimationFrame(() => requestAnimationFrame(it)))"
        )
        await page.evaluate("document.querySelector('nav').scrollTo(0, 1e6)")
        await expect(rows(page)).to_have_count(100)
        await page.evaluate("document.querySelector('nav').scrollTo(0, 1e6)")
        await expect(rows(page)).to_have_count(120)

        await page.get_by_label("New session").fill("<b>Trip</b>")
        await page.get_by_label("New session").press("Enter")
        for window in (page, other):
            await expect(rows(window).first).to_contain_text("<b>Trip</b> (0)")
        page.once("dialog", lambda asked: asked.accept("Trip to Turin"))
        await rows(page).first.get_by_role("button", name="Rename").click()
        for window in (page, other):
            await expect(rows(window).first).to_contain_text("Trip to Turin (0)")
        await other.get_by_label("Find by title").fill("Trip to Turin")
        await other.get_by_label("Find by title").press("Enter")
        await expect(rows(other)).to_have_count(1)
        page.once("dialog", lambda asked: asked.accept())
        await rows(page).first.get_by_role("button", name="Delete").click()
        await expect(rows(page)).to_have_count(120)
        await expect(rows(other)).to_have_count(0)
        await expect(other.get_by_role("status")).to_have_text("No sessions.")
        await page.get_by_label("New session").evaluate("it => it.maxLength = 2000")
        await page.get_by_label("New session").fill("x" * 1001)
        await page.get_by_label("New session").press("Enter")
        too_long = "String should have at most 1000 characters"
        await expect(page.get_by_role("status")).to_have_text(too_long)


def rows(window: Page) -> Locator:
    """The sessions that a window lists."""
    return window.locator("#sessions li")


@pytest.mark.usefixtures("uri")
async def test_the_sidebar_shows_the_users_own_sessions_only() -> None:
    """Each user lists, reads and deletes their own alone, and forks none."""
    sidebar = load("sidebar")
    key = {"app_name": "sidebar", "user_id": "ada", "session_id": "s"}
    async with (
        sidebar.lifespan(sidebar.app),
        serving(sidebar.app) as url,
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
    ):
        await sidebar.service.create_session(**key)
        eve = {"Cookie": "user=eve", "Origin": url}
        mine = "/apps/sidebar/users/ada"
        listed = await http.get(f"{mine}/sessions")
        refused = [
            await http.get(f"{mine}/sessions", headers=eve),
            await http.get(f"{mine}/changes", headers=eve),
            await http.delete(f"{mine}/sessions/s", headers=eve),
            await http.post(f"{mine}/sessions/s/fork", headers={"Origin": url}),
        ]

    assert [each["session_id"] for each in listed.json()["sessions"]] == ["s"]
    assert [each.status_code for each in refused] == [403] * 4


@pytest.mark.usefixtures("uri")
async def test_adk_finds_the_service_in_the_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ADK's server imports services.py, and continues the session after a restart."""
    sessions = "/apps/weather/users/ada/sessions"
    said = {
        "app_name": "weather",
        "user_id": "ada",
        "session_id": "monday",
        "new_message": {"role": "user", "parts": [{"text": "And tomorrow?"}]},
    }
    for run in (1, 2):
        forget_services(monkeypatch)
        app = get_fast_api_app(
            agents_dir=str(EXAMPLES / "adk_web"),
            web=False,
            session_service_uri="mongodb://",
        )
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as http:
            if run == 1:
                new = await http.post(sessions, json={"session_id": "monday"})
                new.raise_for_status()
            events = (await http.post("/run", json=said)).json()
            stored = (await http.get(f"{sessions}/monday")).json()

        text = events[-1]["content"]["parts"][0]["text"]
        assert text.endswith(f"This was forecast {run}.")
        assert len(stored["events"]) == 4 * run
        assert stored["state"] == {"app:forecasts_given": run}


async def test_the_example_of_a_test_passes(uri: str) -> None:
    """Its helper runs the agent's turn, and finds the city that it remembered."""
    example = load("test_agent")

    for city in ("Oslo", "Turin"):
        assert await example.city_after(f"I live in {city}.", uri) == city


def test_each_example_is_small_tested_and_described() -> None:
    """A new program belongs into this module and into examples/README.md."""
    described = (EXAMPLES / "README.md").read_text()
    tested = {
        *PRINTED,
        *ENDLESS,
        "test_agent.py",
        "scripted_model.py",
        "ai_sdk_stream.py",
    }

    assert tested == {*PROGRAMS}
    assert len(PROGRAMS) > 10
    for path in EXAMPLES.rglob("*.*"):
        if path.suffix in {".py", ".html", ".jsx", ".yaml"}:
            most = LONGER.get(path.name, MOST_LINES)
            assert len(path.read_text().splitlines()) < most, path
    assert set(re.findall(r"\]\((\w+\.py)\)", described)) == tested


@pytest.mark.release
@pytest.mark.usefixtures("uri")
@pytest.mark.parametrize("name", [*PRINTED, "test_agent.py"])
def test_an_example_runs_as_a_process(name: str, tmp_path: Path) -> None:
    """As typed in examples/README.md, with no warning but that a part of ADK is new."""
    silent = "ignore:[EXPERIMENTAL] feature"
    command = [sys.executable, "-W", "error", "-W", silent, EXAMPLES / name]
    if name == "test_agent.py":
        command = [sys.executable, "-m", "pytest", "-q", EXAMPLES / name]
    if name == "export_jsonl.py":
        asyncio.run(load("quickstart").main())

    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )

    assert (done.returncode, done.stderr) == (0, "")
    first, _ = PRINTED.get(name, (["1 passed"], None))
    assert "\n".join(first) in done.stdout
