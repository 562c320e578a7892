"""Measures how soon other processes have the tokens of running turns.

One process holds the turns, whose agents yield 50 tokens a second each. Another follows
up to four of them with ``partials=True``. At the end one appends, 32 at once, beside 50
turns and beside none. Agents are generators that stand for ADK's runner. Each round
checks that the tokens were received.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

from google.adk.events import Event
from google.adk.sessions import Session
from google.genai import types

from benchmark.circumstances import show_progress
from benchmark.figures import WrongError, quantile
from benchmark.processes import new_processes, play
from benchmark.report import Report
from mongo_session_service import MongoSessionService, Subscription

APP = "bench"
TURNS = (1, 50, 200)
BESIDE = 50
LANES = 32
FOLLOWED = 4
SECONDS = 5.0
"""Duration of a round."""
TOKEN = 0.02
"""Seconds from one token to the next."""
LAST = 2.0
"""Seconds in which the last tokens arrive."""
GOALS = {50: 150.0, 99: 250.0}
"""Milliseconds that this percentile of the tokens takes, beside the most turns."""


class Agent:
    """What a turn runs: an answer of one token after another, for some seconds."""

    app_name = APP

    async def run_async(self, **_: object) -> AsyncGenerator[Event, None]:
        """Yield tokens; each holds the time at which it was made."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            part = types.Part(text=f"{time.time():.6f} ")
            content = types.Content(role="model", parts=[part])
            yield Event(id="answer", author="agent", content=content, partial=True)
            await asyncio.sleep(TOKEN)


async def hold_turns(uri: str, turns: int) -> None:
    """Run so many turns at once."""
    async with MongoSessionService(uri) as service:
        running = [
            await service.start_turn(
                Agent(),  # type: ignore[arg-type]
                user_id="speaker",
                session_id=f"s{number}",
            )
            for number in range(turns)
        ]
        await asyncio.gather(*(each.result() for each in running))


async def follow_turns(uri: str, turns: int) -> list[float]:
    """Watch some of the turns; milliseconds from each token to its reader."""
    delays: list[float] = []

    async def read(changes: Subscription) -> None:
        async for change in changes:
            now = time.time()
            if change.kind == "partial" and change.event and change.event.content:
                (part,) = change.event.content.parts or []
                made = map(float, (part.text or "").split())
                delays.extend(1000 * (now - each) for each in made)

    async with MongoSessionService(uri) as service, AsyncExitStack() as watched:
        reading = []
        for number in range(min(turns, FOLLOWED)):
            one = service.watch(APP, "speaker", f"s{number}", partials=True)
            changes = await watched.enter_async_context(one)
            reading.append(asyncio.create_task(read(changes)))
        await asyncio.wait(reading, timeout=SECONDS + 2 * LAST)
        for each in reading:
            each.cancel()
    return delays


async def append_events(uri: str) -> int:
    """Append to sessions of others for a round, as fast as it goes; how many."""
    end, done = time.monotonic() + SECONDS, 0

    async def append(session: Session) -> None:
        nonlocal done
        while time.monotonic() < end:
            await service.append_event(session, Event(author="x"))
            done += 1

    async with MongoSessionService(uri) as service:
        create = service.create_session
        created = (create(app_name=APP, user_id="writer") for _ in range(LANES))
        await asyncio.gather(*map(append, await asyncio.gather(*created)))
    return done


async def create_sessions(uri: str) -> None:
    """Create the sessions whose turns are held."""
    async with MongoSessionService(uri) as service:
        for number in range(max(TURNS)):
            await service.create_session(
                app_name=APP, user_id="speaker", session_id=f"s{number}"
            )


def follow_round(uri: str, turns: int) -> list[float]:
    """The delay of each token in a round of so many turns."""
    with new_processes(2) as pool:
        following = pool.submit(play, follow_turns, uri, turns)
        time.sleep(LAST)
        pool.submit(play, hold_turns, uri, turns).result()
        delays: list[float] = following.result()
    wanted = min(turns, FOLLOWED) * SECONDS / TOKEN
    if not 0.5 * wanted < len(delays) <= 1.1 * wanted:
        raise WrongError(f"{len(delays)} tokens were received, {wanted:.0f} were made")
    return delays


def append_round(uri: str, turns: int) -> int:
    """How many events are appended beside so many turns."""
    with new_processes(2) as pool:
        holding = pool.submit(play, hold_turns, uri, turns)
        appended: int = pool.submit(play, append_events, uri).result()
        holding.result()
    return appended


def measure_turns(uri: str, rounds: int, report: Report) -> None:
    """Delays of tokens, and appends beside turns."""
    asyncio.run(create_sessions(uri))
    for turns in TURNS:
        show_progress(f"tokens of {turns} turns")
        delays = [each for _ in range(rounds) for each in follow_round(uri, turns)]
        for share, most in GOALS.items():
            goal = most if turns == max(TURNS) else None
            value = quantile(delays, share / 100)
            report.add(f"token, p{share}, {turns} turns", value, "ms", most=goal)
    show_progress("appends beside turns")
    ratios = [append_round(uri, BESIDE) / append_round(uri, 0) for _ in range(rounds)]
    name = f"{LANES} appends at once beside {BESIDE} turns"
    report.add(name, statistics.median(ratios), "of their rate")
