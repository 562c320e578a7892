"""Measures the live page in Chromium: how long it takes, and how long it freezes.

The command ``live`` serves sessions of so many events, and others that are hard to
draw: 30,000 keys of state, a text of 10 MB, and 48 KB of ``* ``. For each: when its
latest event is shown, when all events have been read, and, by the Long Tasks API, for
how long at once the page did not answer. Then small events are appended, and the work
of the page's main thread for each is what Chromium says.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from typing import Any, NamedTuple
from urllib.parse import urlencode

from google.adk.events import Event, EventActions
from google.genai import types
from playwright.async_api import Page, async_playwright

from benchmark import circumstances
from benchmark.circumstances import show_progress
from benchmark.figures import WrongError, chunks
from benchmark.report import Report, reporting
from mongo_session_service import MongoSessionService

KEY = {"app_name": "bench", "user_id": "ada"}
STORED_AT_ONCE = 500
NEW = 20
"""Events that are appended while the page is open."""
PATIENCE = 180_000
"""Milliseconds for a session to be read."""
LONG_TASKS = """
  window.tasks = [];
  const observer = new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) window.tasks.push(duration);
  });
  observer.observe({ type: "longtask", buffered: true });
"""
SESSIONS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "20,000 events": (20_000, "x", {"n": 0}),
    "100,000 events": (100_000, "x", {"n": 0}),
    "30,000 keys": (1, "x", {f"key {number}": number for number in range(30_000)}),
    "10 MB of text": (1, "lorem ipsum dolor " * 580_000, {}),
    "48 KB of '* '": (1, "* " * 24_000, {}),
}
"""By name: how many events, and the text and the delta of each."""


class Row(NamedTuple):
    """Figures of one session: seconds, and milliseconds of tasks."""

    name: str
    shown: float
    read: float
    longest: float
    long_tasks: int
    new: float

    def __str__(self) -> str:
        """A line of the table."""
        load = os.getloadavg()[0]
        return (
            f"{self.name:>15}: shown {self.shown:5.1f} s, all read {self.read:5.1f} s,"
            f" longest task {self.longest:4.0f} ms, {self.long_tasks} over 50 ms,"
            f" {self.new:4.1f} ms for a new event, load {load:.1f}"
        )


def said(text: str, delta: dict[str, Any], invocation: str = "new") -> Event:
    """Make an event of an agent."""
    content = types.ModelContent(types.Part(text=text))
    actions = EventActions(state_delta=delta)
    return Event(
        author="agent", invocation_id=invocation, content=content, actions=actions
    )


async def fill(
    service: MongoSessionService,
    name: str,
    count: int,
    text: str,
    delta: dict[str, Any],
) -> None:
    """Store a session of so many events, each with this text and delta."""
    session = await service.create_session(**KEY, session_id=name)
    for some in chunks(range(count), STORED_AT_ONCE):
        events = [said(text, delta, f"i{number // 4}") for number in some]
        await asyncio.gather(*(service.append_event(session, it) for it in events))


async def measure(
    page: Page, service: MongoSessionService, url: str, name: str, count: int
) -> Row:
    """Open a session, unfold its latest event, and append to it."""
    began = time.monotonic()
    await page.goto(f"{url}&{urlencode(KEY | {'session_id': name})}")
    last = page.locator(f'.event[data-revision="{count}"]')
    await last.wait_for(timeout=PATIENCE)
    shown = time.monotonic() - began
    counted = page.locator("#event-count").get_by_text(f"{count:,}", exact=True)
    await counted.wait_for(timeout=PATIENCE)
    read = time.monotonic() - began
    for more in await last.get_by_role("button", name="Show all").all():
        await more.click()
        await last.locator(".text > *").nth(9).wait_for()
    session = await service.get_session(**KEY, session_id=name)
    if session is None or len(session.events) != count:
        raise WrongError(f"The session of {name} is not as it was stored.")
    devtools = await page.context.new_cdp_session(page)
    await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    work = []
    for number in range(NEW + 1):
        found = await devtools.send("Performance.getMetrics")
        work += [it["value"] for it in found["metrics"] if it["name"] == "TaskDuration"]
        if number < NEW:
            await service.append_event(session, said(f"new {number}", {"n": number}))
            await page.get_by_text(f"new {number}", exact=True).wait_for()
    tasks = await page.evaluate("window.tasks")
    new = (work[-1] - work[0]) / NEW * 1000
    return Row(name, shown, read, max(tasks, default=0), len(tasks), new)


async def run(uri: str, rounds: int, report: Report) -> None:
    """Measure each session in a page of its own, and report each row."""
    command = (sys.executable, "-m", "mongo_session_service", "live", "--uri", uri)
    server = await asyncio.create_subprocess_exec(
        *command, "--no-open", "--port", "0", stdout=asyncio.subprocess.PIPE
    )
    try:
        line = ""
        while server.stdout is not None and "http://" not in line:
            line = (await server.stdout.readline()).decode()
        url = line[line.index("http://") :].split()[0]
        async with MongoSessionService(uri) as service, async_playwright() as player:
            chromium = await player.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            for number in range(rounds):
                for name, (count, text, delta) in SESSIONS.items():
                    own = f"{name} {number}"
                    show_progress(own)
                    await fill(service, own, count, text, delta)
                    page = await chromium.new_page()
                    await page.add_init_script(LONG_TASKS)
                    row = await measure(page, service, url, own, count)
                    await page.close()
                    report.rows.append(str(row))
                    report.figures[own] = row._asdict()
    finally:
        server.terminate()
        await server.wait()


def main() -> int:
    """Measure all sessions; the exit code."""
    parser = circumstances.make_parser("page", __doc__)
    arguments = circumstances.parse_arguments(parser)
    with reporting("The live page", arguments) as (report, mongodb):
        asyncio.run(run(mongodb.uri, arguments.rounds, report))
    return 0
