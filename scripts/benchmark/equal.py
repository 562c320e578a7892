"""Ours beside code that does equal work: by client instructions, and in turns.

Instructions are counted by valgrind's callgrind, where that and gcc are installed: they
repeat to one or two percent on any machine, busy or not. In turns, short rounds of both
alternate in one process; shown are medians of the rounds' ratios of wall and CPU time.

For appends at once the peer is a bare loop of transactions over events that were made
before, as ours are, in collections with this package's indexes. For all else it is code
by hand that does what ADK asks of a service and no more.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import gc
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from google.adk.agents import BaseAgent
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import (
    GetSessionConfig,
    ListSessionsResponse,
)
from google.genai import types
from pymongo import AsyncMongoClient
from typing_extensions import override

from benchmark.circumstances import collect_facts, described, make_parser
from benchmark.figures import WrongError
from benchmark.handwritten import append_bare
from benchmark.workloads import make_event
from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.storage import tasks

SHIM = """#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(void) { CALLGRIND_DUMP_STATS; CALLGRIND_STOP_INSTRUMENTATION; }
"""
AT_ONCE = 32
APP = "bench"
Round = Callable[[], Awaitable[object]]


class ByHand(BaseSessionService):
    """What ADK asks: scopes, shared state, times, a session that shows its events."""

    def __init__(self, uri: str, database: str) -> None:
        self.client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
        self.database = self.client[database]
        self._revisions: dict[str, int] = {}

    async def setup(self) -> None:
        """Create what a transaction should not have to."""
        for name in ("sessions", "events", "apps", "users"):
            await self.database.create_collection(name)

    async def _share(self, key: tuple[str, str], delta: Any, txn: Any) -> None:
        for collection, id_, fields in (
            ("apps", key[0], delta["app"]),
            ("users", {"app": key[0], "user": key[1]}, delta["user"]),
        ):
            if fields:
                change = {"$set": {f"state.{name}": it for name, it in fields.items()}}
                where = self.database[collection]
                await where.update_one({"_id": id_}, change, upsert=True, session=txn)

    async def _shown(
        self, app: str, user: str, more: Sequence[Any] = ()
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Read shared state, and what further stages find, with one aggregation."""
        users = [{"$match": {"_id": {"app": app, "user": user}}}]
        stages = [
            {"$match": {"_id": app}},
            {"$unionWith": {"coll": "users", "pipeline": users}},
            *more,
        ]
        cursor = await self.database.apps.aggregate(stages, batchSize=10_000)
        state: dict[str, Any] = {}
        others = []
        for each in await cursor.to_list():
            if each["_id"] == app or len(each["_id"]) == len(users[0]["$match"]["_id"]):
                prefix = "app:" if each["_id"] == app else "user:"
                state |= {prefix + name: it for name, it in each["state"].items()}
            else:
                others.append(each)
        return state, others

    @override
    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        id_, now, delta = session_id or uuid.uuid4().hex, time.time(), scoped(state)
        key = {"app": app_name, "user": user_id, "session": id_}
        own = {"_id": key, "revision": 0, "time": now, "state": delta[""]}
        async with self.client.start_session() as client_session:

            async def write(txn: Any) -> None:
                await self.database.sessions.insert_one(own, session=txn)
                await self._share((app_name, user_id), delta, txn)

            if delta["app"] or delta["user"]:
                await client_session.with_transaction(write)
            else:
                await self.database.sessions.insert_one(own)
        shared, _ = await self._shown(app_name, user_id)
        return Session(
            id=id_,
            app_name=app_name,
            user_id=user_id,
            state=delta[""] | shared,
            last_update_time=now,
        )

    @override
    async def append_event(self, session: Session, event: Event) -> Event:
        key = {
            "app": session.app_name,
            "user": session.user_id,
            "session": session.id,
        }
        revision, delta = (
            self._revisions.get(session.id, 0),
            scoped(event.actions.state_delta),
        )
        change = {f"state.{name}": it for name, it in delta[""].items()}
        dumped = event.model_dump(mode="json", exclude_none=True)

        async def write(txn: Any) -> None:
            done = await self.database.sessions.update_one(
                {"_id": key, "revision": revision},
                {"$set": {**change, "time": event.timestamp}, "$inc": {"revision": 1}},
                session=txn,
            )
            if done.matched_count != 1:
                raise WrongError("an append met a session of another revision")
            await self.database.events.insert_one(
                {"_id": {**key, "revision": revision + 1}, "event": dumped}, session=txn
            )
            await self._share((session.app_name, session.user_id), delta, txn)

        async with self.client.start_session() as client_session:
            await client_session.with_transaction(write)
        self._revisions[session.id] = revision + 1
        session.last_update_time = event.timestamp
        return await super().append_event(session, event)

    @override
    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        key = {"app": app_name, "user": user_id, "session": session_id}
        head = [{"$match": {"_id": key}}]
        stages = [{"$unionWith": {"coll": "sessions", "pipeline": head}}]
        most = config.num_recent_events if config else None
        if most != 0:
            bounds = {"$gt": {**key, "revision": 0}, "$lt": {**key, "revision": 1e12}}
            log = [{"$match": {"_id": bounds}}, {"$sort": {"_id": -1}}]
            log += [{"$limit": most}] if most else []
            stages.append({"$unionWith": {"coll": "events", "pipeline": log}})
        shared, found = await self._shown(app_name, user_id, stages)
        if not found:
            return None
        stored, *events = found
        return Session(
            id=session_id,
            app_name=app_name,
            user_id=user_id,
            state=stored["state"] | shared,
            events=[Event.model_validate(each["event"]) for each in events[::-1]],
            last_update_time=stored["time"],
        )

    @override
    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        key = {"app": app_name, "user": user_id}
        bounds = {"$gt": {**key, "session": ""}, "$lt": {**key, "session": "~"}}
        cursor = self.database.sessions.find({"_id": bounds}).batch_size(10_000)
        found = sorted(await cursor.to_list(), key=lambda it: it["time"])
        shared, _ = await self._shown(app_name, str(user_id))
        return ListSessionsResponse(
            sessions=[
                Session(
                    id=each["_id"]["session"],
                    app_name=app_name,
                    user_id=str(user_id),
                    state=each["state"] | shared,
                    last_update_time=each["time"],
                )
                for each in found
            ]
        )

    @override
    async def delete_session(
        self, *, app_name: str, user_id: str, session_id: str
    ) -> None:
        raise NotImplementedError


def scoped(state: dict[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Divide a delta by its scopes; what is temporary is left out."""
    parts: dict[str, dict[str, Any]] = {"app": {}, "user": {}, "": {}, "temp": {}}
    for key, value in (state or {}).items():
        scope, colon, name = key.partition(":")
        known = bool(colon) and scope in parts
        parts[scope if known else ""][name if known else key] = value
    return parts


USAGE = types.GenerateContentResponseUsageMetadata(
    prompt_token_count=1200,
    candidates_token_count=250,
    total_token_count=1450,
    prompt_tokens_details=[
        types.ModalityTokenCount(modality=types.MediaModality.TEXT, token_count=1200)
    ],
)


def model_event(number: int) -> Event:
    """An answer as a model's flow yields it."""
    event = make_event(number, {"turn": number})
    event.usage_metadata, event.finish_reason = USAGE, types.FinishReason.STOP
    event.model_version, event.long_running_tool_ids = "gemini-2.5-flash", set()
    event.node_info.path = "agent@1"
    return event


class Answering(BaseAgent):
    """Answers each message with one event."""

    @override
    async def _run_async_impl(self, ctx: Any) -> Any:
        yield Event(
            author=self.name,
            invocation_id=ctx.invocation_id,
            content=types.Content(role="model", parts=[types.Part(text="Done.")]),
        )


class Work:
    """A workload: makes a round ready, outside of what is measured."""

    calls: ClassVar[dict[str, int]] = {
        "append, 32 at once": 4 * AT_ONCE,
        "append of a model's event, 32 at once": 4 * AT_ONCE,
        "append": 40,
        "a session without events": 30,
        "a session with its last 20 events": 20,
        "a session with all of 1,000 events": 2,
        "a list of 500 sessions": 3,
        "a new session": 30,
        "a whole turn of ADK's Runner": 10,
        "changes in bursts of 32, with their appends": 4 * AT_ONCE,
    }

    def __init__(self, name: str, service: Any, uri: str, database: str) -> None:
        self.name, self.service = name, service
        self.client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
        self.database = self.client[database]
        self.is_ours = isinstance(service, MongoSessionService)

    async def new_session(self, **fields: Any) -> Session:
        """Create a session of a user of its own."""
        user = uuid.uuid4().hex
        session: Session = await self.service.create_session(
            **{"app_name": APP, "user_id": user, **fields}
        )
        return session

    async def prepare(self) -> None:
        """Store what the rounds need; have the event loop a client of its own."""
        for _ in range(105 if self.is_ours else 1):
            self.session = await self.new_session()
        self.several = [await self.new_session() for _ in range(AT_ONCE)]
        if "list" in self.name:
            state = {f"key-{number}": "v" * 40 for number in range(10)}
            for _ in range(500):
                await self.new_session(user_id="lister", state=state)
        elif self.name.startswith("a session"):
            for number in range(1000):
                await self.service.append_event(self.session, make_event(number))

    async def append_all(self, made: Sequence[Sequence[Event]]) -> None:
        """Append to several sessions at once, each one's events one by one."""

        async def lane(session: Session, events: Sequence[Event]) -> None:
            for event in events:
                await self.service.append_event(session, event)

        await asyncio.gather(*map(lane, self.several, made))

    async def append_bare(self, made: Sequence[Sequence[Event]]) -> None:
        """The limit: the same as transactions of 32, and nothing around them."""
        for events in zip(*made, strict=True):
            some = list(zip(self.several, events, strict=True))
            await append_bare(self.database, self.stored, some)

    async def round(self, *, bare: bool) -> Round:
        """Make a round ready; what is returned is measured."""
        count, key = self.calls[self.name], self.session
        named = {"app_name": APP, "user_id": key.user_id, "session_id": key.id}
        each = model_event if "model" in self.name else make_event
        each_lane = [[each(n) for n in range(4)] for _ in self.several]
        singles = [make_event(n, {"turn": n}) for n in range(count)]
        for session in (key, *self.several):
            session.events.clear()
        if bare:
            found = await self.database.sessions.find().to_list()
            self.stored = {it["_id"]["session_id"]: it for it in found}
            return lambda: self.append_bare(each_lane)
        if "32 at once" in self.name:
            return lambda: self.append_all(each_lane)
        if "bursts" in self.name:
            return lambda: self.follow(each_lane)
        if "turn" in self.name:
            agent, message = Answering(name="agent"), types.UserContent("Hello.")
            runner = Runner(app_name=APP, agent=agent, session_service=self.service)

            async def turn(_: object) -> None:
                asked = {"user_id": key.user_id, "session_id": key.id}
                async for _event in runner.run_async(**asked, new_message=message):
                    pass

            return lambda: one_by_one(turn, range(count))
        config = {"without": 0, "last 20": 20}
        recent = [n for words, n in config.items() if words in self.name]
        limited = GetSessionConfig(num_recent_events=recent[0]) if recent else None
        listing = {"app_name": APP, "user_id": "lister"}
        calls: dict[str, Callable[[Any], Awaitable[Any]]] = {
            "append": lambda event: self.service.append_event(key, event),
            "a session": lambda _: self.service.get_session(**named, config=limited),
            "a list": lambda _: self.service.list_sessions(**listing),
            "a new": lambda _: self.new_session(state={"a": 1, "user:b": 2}),
        }
        call = next(it for name, it in calls.items() if self.name.startswith(name))
        return lambda: one_by_one(call, singles)

    async def follow(self, made: Sequence[Sequence[Event]]) -> None:
        """Append to several sessions, and receive every change."""
        left = sum(map(len, made))
        if self.is_ours:
            async with self.service.watch(app_name=APP) as changes:
                appending = asyncio.create_task(self.append_all(made))
                async for change in changes:
                    left -= change.kind == "appended"
                    if not left:
                        break
        else:
            only = [{"$match": {"operationType": "insert"}}]
            async with await self.database.events.watch(only) as changes:
                appending = asyncio.create_task(self.append_all(made))
                async for _ in changes:
                    left -= 1
                    if not left:
                        break
        await appending

    async def close(self) -> None:
        """Remove what was stored."""
        await self.client.drop_database(self.database.name)
        if self.is_ours:
            await self.service.close()
        else:
            await self.service.client.close()
        await self.client.close()


async def one_by_one(call: Callable[[Any], Awaitable[Any]], items: Any) -> None:
    """Call for each item, when the call before has ended."""
    for each in items:
        await call(each)


async def open_pair(name: str, uri: str) -> dict[str, Work]:
    """Make both ready: ours, and its peer."""
    pair = {}
    for who in ("ours", "peer"):
        database = f"adk_bench_{uuid.uuid4().hex[:8]}"
        if who == "ours" or is_bare(name, who):
            service: Any = MongoSessionService(uri, database=database)
        else:
            service = ByHand(uri, database)
        await service.setup()
        pair[who] = Work(name, service, uri, database)
        await pair[who].prepare()
    return pair


def is_bare(name: str, who: str) -> bool:
    """Whether the peer is the bare loop."""
    return who == "peer" and name.endswith("32 at once")


async def count(names: Sequence[str], uri: str, directory: Path) -> None:
    """Count instructions of one round of each, after one that warms up."""
    shim = ctypes.CDLL(str(directory / "shim.so"))
    tasks._SLICE = 1.0  # noqa: SLF001  what runs here is 50 times slower
    for name in names:
        counts = {}
        for who, work in (await open_pair(name, uri)).items():
            await (await work.round(bare=is_bare(name, who)))()
            measured = await work.round(bare=is_bare(name, who))
            gc.collect()
            gc.disable()
            shim.begin()
            await measured()
            shim.end()
            gc.enable()
            counts[who] = take_total(directory) / work.calls[name] / 1000
            await work.close()
        show(name, "k instructions", counts, counts["ours"] / counts["peer"])


def take_total(directory: Path) -> int:
    """Read how many instructions callgrind has counted, and forget them."""
    dumped = max(directory.glob("out.*"), key=lambda it: it.stat().st_mtime)
    line = next(it for it in dumped.open() if it.startswith("totals:"))
    dumped.unlink()
    return int(line.split()[1])


async def alternate(names: Sequence[str], uri: str, rounds: int) -> None:
    """Measure wall and CPU time of rounds in turns."""
    for name in names:
        pair = await open_pair(name, uri)
        found: dict[str, list[tuple[float, float]]] = {who: [] for who in pair}
        for number in range(rounds + 1):
            for who in sorted(pair, reverse=bool(number % 2)):
                measured = await pair[who].round(bare=is_bare(name, who))
                gc.collect()
                began = time.perf_counter(), time.process_time()
                await measured()
                ended = time.perf_counter(), time.process_time()
                scale = Work.calls[name] / 1e6
                both = [(b - a) / scale for a, b in zip(began, ended, strict=True)]
                if number:  # the first one warms up
                    found[who].append((both[0], both[1]))
        for index, unit in enumerate(("us wall", "us CPU")):
            middle = {
                who: statistics.median(it[index] for it in rows)
                for who, rows in found.items()
            }
            pairs = zip(found["ours"], found["peer"], strict=True)
            ratio = statistics.median(a[index] / b[index] for a, b in pairs)
            show(name, unit, middle, ratio)
        for work in pair.values():
            await work.close()


def show(name: str, unit: str, values: dict[str, float], ratio: float) -> None:
    """Print a row."""
    ours, peer = (f"{values[who]:10,.0f}" for who in ("ours", "peer"))
    print(f"{name:45}{unit:15}{ours} {peer} {ratio:6.2f}", flush=True)


def count_in_valgrind(names: str, uri: str) -> None:
    """Run this module where instructions are counted."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        (directory / "shim.c").write_text(SHIM)
        built = ["gcc", "-O1", "-shared", "-fPIC", "-o", "shim.so", "shim.c"]
        subprocess.run(built, cwd=directory, check=True)
        command = [
            *("valgrind", "-q", "--tool=callgrind", "--instr-atstart=no"),
            f"--callgrind-out-file={directory}/out",
            *(sys.executable, "-W", "ignore", "-m", "benchmark.equal"),
            *("--only", names, "--uri", uri, "--counting", name),
        ]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def parse_arguments() -> argparse.Namespace:
    """Parse the arguments."""
    parser = make_parser("equal", __doc__)
    parser.add_argument("--only", metavar="WORDS", default="", help="workloads")
    uri = os.environ.get("MONGODB_URI")
    parser.add_argument("--uri", default=uri, help="a MongoDB replica set")
    parser.add_argument("--counting", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (2 if arguments.quick else 15)
    return arguments


def main() -> int:
    """Run both parts; the exit code."""
    arguments = parse_arguments()
    names = [name for name in Work.calls if arguments.only in name]
    if arguments.counting:
        asyncio.run(count(names, arguments.uri, arguments.counting))
        sys.stdout.flush()
        os._exit(0)  # the interpreter's end takes valgrind a minute
    with contextlib.ExitStack() as stack:
        uri = arguments.uri or stack.enter_context(EmbeddedReplicaSet()).uri
        facts = collect_facts(arguments)
        print(f"{'Equal work: ' + described(facts):60}      ours       peer  ratio")
        if shutil.which("valgrind") and shutil.which("gcc"):
            count_in_valgrind(arguments.only, uri)
        else:
            print("Instructions are not counted: valgrind or gcc is missing.")
        asyncio.run(alternate(names, uri, arguments.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
