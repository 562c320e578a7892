"""First use: a service of a new process, until its first session is created.

On a new database, whose collections and indexes are created on the way, and on one that
is known already. This package takes turns with ADK's MongoDB service and a hand-written
script, each with a client of its own that has yet to connect; imports are done before.
Medians of time, with commands and round trips: commands that are under way at the same
time are one. These are counted while each takes long. Needs a quarter of a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from google.adk.integrations.mongodb import MongoDbSessionService
from pymongo import AsyncMongoClient, MongoClient, monitoring

from benchmark import options
from benchmark.contestants import Place
from benchmark.handwritten import HandWritten
from benchmark.measure import WrongError
from benchmark.plan import LIMIT, OURS, RIVAL
from benchmark.report import circumstances
from benchmark.run import Pace
from mongo_session_service import MongoSessionService

NEW, KNOWN = "a new database", "a known one"
_PER_ROUND: Final = 4
_LONG: Final = 100  # milliseconds
_COMMANDS: Final = (
    *("aggregate", "commitTransaction", "create", "createIndexes", "find", "insert"),
    *("listCollections", "listIndexes", "update"),
)


@dataclass(frozen=True)
class Start:
    """What one service's first session took."""

    ms: float
    commands: int
    round_trips: int


class Commands(monitoring.CommandListener):
    """When each command of a client was under way."""

    def __init__(self) -> None:
        self._begun: dict[int, float] = {}
        self.spans: list[tuple[float, float]] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Note when."""
        self._begun[event.request_id] = time.perf_counter()

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Note how long it took."""
        self._end(event.request_id)

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Note how long it took: it was a round trip as well."""
        self._end(event.request_id)

    def _end(self, request: int) -> None:
        self.spans.append((self._begun.pop(request), time.perf_counter()))

    def round_trips(self) -> int:
        """How many followed each other, at least: the most of which no two overlap."""
        trips, last = 0, 0.0
        for begun, ended in sorted(self.spans, key=lambda span: span[1]):
            if begun >= last:
                trips, last = trips + 1, ended
        return trips


def ours(client: AsyncMongoClient[Any], database: str) -> MongoSessionService:
    """This package's service."""
    return MongoSessionService(client=client, database=database)


def adk(client: MongoClient[Any], database: str) -> MongoDbSessionService:
    """ADK's service."""
    return MongoDbSessionService(mongo_client=client, database_name=database)


SERVICES: Final[dict[str, tuple[Any, Callable[[Any, str], Any]]]] = {
    OURS: (AsyncMongoClient, ours),
    RIVAL: (MongoClient, adk),
    LIMIT: (AsyncMongoClient, HandWritten),
}
"""The class of its client, and what makes it."""


async def start(name: str, uri: str, database: str, session_id: str) -> Start:
    """Make a service, and create its first session."""
    key = {"app_name": "app", "user_id": "user", "session_id": session_id}
    commands = Commands()
    make_client, make_service = SERVICES[name]
    began = time.perf_counter()
    client = make_client(uri, event_listeners=[commands])
    service = make_service(client, database)
    if isinstance(service, HandWritten):
        await service.setup()
    await service.create_session(**key, state={"topic": "weather"})
    taken = time.perf_counter() - began
    found = Start(1000 * taken, len(commands.spans), commands.round_trips())
    session = await service.get_session(**key)
    if session is None or session.state != {"topic": "weather"}:
        raise WrongError(f"The session of {session_id} was not stored.")
    await service.close()
    closed = client.close()
    if closed is not None:  # it is asynchronous
        await closed
    return found


@asynccontextmanager
async def slow(admin: AsyncMongoClient[Any]) -> AsyncIterator[None]:
    """Have the server take long for each command, whatever else the machine does.

    Then those that do not wait for each other overlap, although the connections that
    they need are opened one after the other.
    """
    blocking = {
        "blockConnection": True,
        "blockTimeMS": _LONG,
        "failCommands": _COMMANDS,
    }
    point = {"configureFailPoint": "failCommand"}
    await admin.admin.command({**point, "mode": "alwaysOn", "data": blocking})
    try:
        yield
    finally:
        await admin.admin.command({**point, "mode": "off"})


async def measure(place: Place, pace: Pace) -> dict[str, dict[str, dict[str, float]]]:
    """The figures of each database and service."""
    found: dict[tuple[str, str], list[Start]] = defaultdict(list)
    slowly: dict[tuple[str, str], Start] = {}
    admin: AsyncMongoClient[Any] = AsyncMongoClient(place.uri)
    turns = _PER_ROUND * pace.rounds
    for turn in range(turns + 2):
        for name in SERVICES if turn % 2 else reversed(SERVICES):
            database = f"{place.run}_{turn}_{name.replace(' ', '_')}"
            for kind in (NEW, KNOWN):
                if turn <= turns:
                    took = await start(name, place.uri, database, kind)
                    found[kind, name].append(took)
                else:
                    async with slow(admin):
                        took = await start(name, place.uri, database, kind)
                    slowly[kind, name] = took
            await admin.drop_database(database)
    await admin.close()
    return {
        kind: {
            name: {
                # The first one warms up.
                "ms": statistics.median(each.ms for each in found[kind, name][1:]),
                "round_trips": slowly[kind, name].round_trips,
                "commands": slowly[kind, name].commands,
            }
            for name in SERVICES
        }
        for kind in (NEW, KNOWN)
    }


def main() -> int:
    """Run the bench; the exit code."""
    parser = argparse.ArgumentParser("scripts/bench starts", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="rough: 2 rounds")
    parser.add_argument("--rounds", type=int, help="of four starts of each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure")
    parser.set_defaults(uri=None)  # not everywhere can commands be slowed down
    arguments = options.parse(parser)
    with options.begun(arguments) as (place, pace, facts):
        figures = asyncio.run(measure(place, pace))
    print(f"First session of a new service, {circumstances(facts)}", end="\n\n")
    print(f"| | {' | '.join(SERVICES)} |\n|{' --- |' * (len(SERVICES) + 1)}")
    for kind, services in figures.items():
        for figure, name in _FIGURES.items():
            cells = [f"{services[each][figure]:.3g}" for each in SERVICES]
            print(f"| {kind}: {name} | {' | '.join(cells)} |")
    print()
    print(", ".join(f"{name} {value}" for name, value in facts.items()))
    if arguments.json:
        report = {"about": facts, "figures": figures}
        arguments.json.write_text(json.dumps(report, indent=1))
    return 0


_FIGURES: Final = {"ms": "ms", "round_trips": "round trips", "commands": "commands"}
