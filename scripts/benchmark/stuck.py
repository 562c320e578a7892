"""Measures appends beside sessions that another program has locked.

In each round another client's open transaction holds the documents of some sessions,
and several appends wait for each of these. Meanwhile appends to other sessions are
timed: each of these has a writer that appends, pauses for 20 ms, and appends again.
Then a service with a time limit appends to the locked ones. Rounds with and without
locked sessions alternate.

Each round checks that what waited is stored in its order once the lock is released,
and that nothing else was stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from google.adk.events import Event
from google.adk.sessions import Session
from pymongo import AsyncMongoClient

from benchmark import circumstances
from benchmark.circumstances import show_progress
from benchmark.figures import WrongError, quantile, time_call
from benchmark.report import Report, reporting
from mongo_session_service import MongoSessionService, MongoSessionServiceError

APP = "bench"
STUCK = 10
WAITING = 3
"""Appends for each stuck session."""
WRITERS = 16
PAUSE = 0.02
LIMIT = 1.5
"""Seconds that the callers with a time limit wait."""
LATE = 1.0
"""Seconds that they may end later."""
MOST = 2.0
"""How many times the p99 beside none it may be beside stuck sessions."""
WORST = 1500.0
"""Milliseconds that no append to a free session may take."""


@dataclass
class Figures:
    """Rounds beside so many stuck sessions."""

    stuck: int
    appends: list[float] = field(default_factory=list)
    """Milliseconds of each append to a free session."""
    late: list[float] = field(default_factory=list)
    """Seconds from the end of each lock until all that waited was stored."""
    limited: list[float] = field(default_factory=list)
    """Seconds after which each caller with a time limit was told."""

    def add_to(self, report: Report) -> None:
        """Add these figures to a report."""
        where, p99 = f"beside {self.stuck} stuck", quantile(self.appends, 0.99)
        report.add(f"append {where}, median", quantile(self.appends, 0.5), "ms")
        report.add(f"append {where}, p99", p99, "ms")
        report.add(f"append {where}, worst", max(self.appends), "ms", most=WORST)
        report.add(f"stored after the lock's end, {where}", max(self.late), "s")


@asynccontextmanager
async def locked(uri: str, sessions: Sequence[Session]) -> AsyncIterator[None]:
    """Hold the documents of sessions in a transaction that changes nothing."""
    async with (
        AsyncMongoClient[Any](uri) as client,
        client.start_session() as txn,
        await txn.start_transaction(),
    ):
        for each in sessions:
            id_ = {"app_name": APP, "user_id": each.user_id, "session_id": each.id}
            where, change = {"_id": id_}, {"$set": {"locked": True}}
            await client.adk.sessions.update_one(where, change, session=txn)
        yield
        await txn.abort_transaction()


async def append_on(
    service: MongoSessionService, session: Session, end: float
) -> list[float]:
    """Append until a time has come; the milliseconds of each append."""
    taken = []
    while time.monotonic() < end:
        append = service.append_event(session, Event(author="free"))
        taken.append(await time_call(append))
        await asyncio.sleep(PAUSE)
    return taken


async def give_up(service: MongoSessionService, session: Session) -> float:
    """Append to a locked session within a time limit; the seconds that it took."""
    began = time.monotonic()
    try:
        await service.append_event(session, Event(author="limited"))
    except MongoSessionServiceError:
        return time.monotonic() - began
    raise WrongError("An append to a locked session has ended.")


async def run_round(uri: str, figures: Figures, seconds: float) -> None:
    """Append for so long beside stuck sessions."""
    async with (
        MongoSessionService(uri) as service,
        MongoSessionService(f"{uri}&timeoutMS={LIMIT * 1000:.0f}") as limited,
    ):
        users = ["stuck"] * figures.stuck + ["free"] * WRITERS
        sessions = [
            await service.create_session(app_name=APP, user_id=user) for user in users
        ]
        stuck, free = sessions[: figures.stuck], sessions[figures.stuck :]
        copies = [each.model_copy(deep=True) for each in stuck]
        async with locked(uri, stuck):
            waiting = [
                asyncio.ensure_future(
                    service.append_event(each, Event(author=str(number)))
                )
                for number in range(WAITING)
                for each in stuck
            ]
            end = time.monotonic() + seconds
            lanes = await asyncio.gather(
                *(append_on(service, each, end) for each in free)
            )
            figures.limited += await asyncio.gather(
                *(give_up(limited, each) for each in copies)
            )
            if any(each.done() for each in waiting):
                raise WrongError("An append to a session that is locked has ended.")
        released = time.monotonic()
        await asyncio.gather(*waiting)
        figures.late.append(time.monotonic() - released)
        figures.appends += [took for lane in lanes for took in lane]
        wanted = [str(number) for number in range(WAITING)]
        for each in stuck:
            stored = await service.get_session(
                app_name=APP, user_id=each.user_id, session_id=each.id
            )
            if stored is None or [event.author for event in stored.events] != wanted:
                raise WrongError("What waited for a lock is not stored in its order.")


def main() -> int:
    """Measure rounds beside none and some stuck sessions; the exit code."""
    parser = circumstances.make_parser("stuck", __doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="each round")
    arguments = circumstances.parse_arguments(parser)
    none, some = rows = Figures(0), Figures(STUCK)
    with reporting("Beside stuck sessions", arguments) as (report, mongodb):
        for number in range(arguments.rounds):
            for row in rows if number % 2 else rows[::-1]:
                show_progress(f"round {number + 1}, {row.stuck} stuck")
                asyncio.run(run_round(mongodb.uri, row, arguments.seconds))
        for row in rows:
            row.add_to(report)
        ratio = quantile(some.appends, 0.99) / quantile(none.appends, 0.99)
        report.add("p99 beside some, of that beside none", ratio, "times", most=MOST)
        told = max(some.limited)
        report.add("told of the time limit after", told, "s", most=LIMIT + LATE)
    return 0
