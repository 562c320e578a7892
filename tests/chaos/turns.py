"""Turns under faults: processes that are killed, paused and cut off as they hold one.

``campaign`` starts the processes, each of which is ``python -m chaos.turns`` with its
orders as JSON. All of them take turns of the same few sessions and append several
events in each. They rebase, so that nothing but the turn keeps them apart. The clocks
of all but every third are wrong.

Of as many other sessions they run turns in which an agent calls a tool and speaks, and
now and then stop those of anybody. A listener watches what is said.
"""

from __future__ import annotations

import asyncio
import faulthandler
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from google.adk.events import Event
from google.adk.sessions import Session
from google.genai import types as genai
from pymongo import MongoClient
from support.dying_process import before_commits, die
from support.fake_clock import machine_ahead
from support.replica_set import FailingReplicaSet

from mongo_session_service import (
    LeaseLostError,
    MongoSessionService,
    StorageUnavailableError,
    Subscription,
)
from mongo_session_service.testing import Limits

DATABASE = "turns"
SESSIONS = 3
TASKS = 4
"""Callers in each process."""
EVENTS = 3
"""Events of each body."""
WORDS = 20
"""Pieces of what an agent says."""
CLOCKS = (0.0, 600.0, -600.0)
"""Seconds that the clocks of the processes are ahead."""
STOPPED = 0.2
"""The part of the running turns that somebody stops."""
OUTAGE = 9.0
"""Seconds for which a process is paused, or cut off."""
TAKEN_OVER = 1.9 * Limits().lease_seconds
"""Seconds after which whoever waits has to have the turn, also on a busy machine: a
dead one keeps it for a lease, and two in succession would be a fault."""
ELECTION = 5.0
"""Seconds more if the primary is deposed at the same time."""
_PATIENCE = 60.0


@dataclass(frozen=True)
class Orders:
    """The orders of a process, until its standard input is closed."""

    name: str
    uri: str
    journal: str
    callers: int
    clock_ahead: float
    """Seconds that its clock is ahead."""


def key(number: int) -> dict[str, str]:
    return {"app_name": "app", "user_id": "user", "session_id": str(number)}


async def _caller(service: MongoSessionService, name: str, orders: Orders) -> None:
    chance = random.Random(name)  # noqa: S311  no secret
    for number in itertools.count():
        body, outcome = f"{name}.{number}", "done"
        try:
            which = key(chance.randrange(SESSIONS))
            asked = {"asked": time.time()}
            async with service.turn(**which, wait=_PATIENCE) as session:
                for last in (False,) * (EVENTS - 1) + (True,):
                    event = Event(
                        author=body, timestamp=time.time(), custom_metadata=asked
                    )
                    await service.append_event(session, event)
                    await asyncio.sleep(0 if last else chance.uniform(0.02, 0.1))
        except (LeaseLostError, StorageUnavailableError, TimeoutError) as error:
            outcome = type(error).__name__
        with Path(orders.journal).open("a") as journal:  # noqa: ASYNC230  it is short
            journal.write(f"{outcome}\n")


class Speaker:
    """What a running turn runs: it calls a tool, speaks, answers the call, and ends."""

    app_name = "app"

    def __init__(self, service: MongoSessionService, body: str) -> None:
        self.agent = types.SimpleNamespace(name="agent")
        self._service = service
        self._body = body
        self._asked = {"asked": time.time()}

    async def run_async(
        self, *, user_id: str, session_id: str, **_: object
    ) -> AsyncGenerator[Event, None]:
        """Yield and append what the agent says."""
        session = await self._service.get_session(
            app_name=self.app_name, user_id=user_id, session_id=session_id
        )
        assert session is not None
        call = genai.Part.from_function_call(name="tool", args={})
        call.function_call.id = self._body
        yield await self._append(session, call)
        spoken = self._event(None).id
        for number in range(WORDS):
            part = genai.Part(text=f"{number} ")
            piece = self._event(part).model_copy(update={"id": spoken, "partial": True})
            yield piece
            await asyncio.sleep(0.02)
        answer = genai.Part.from_function_response(name="tool", response={})
        answer.function_response.id = self._body
        yield await self._append(session, answer)

    async def _append(self, session: Session, part: genai.Part) -> Event:
        return await self._service.append_event(session, self._event(part))

    def _event(self, part: genai.Part | None) -> Event:
        content = genai.Content(role="model", parts=[part] if part else [])
        return Event(
            author=self._body,
            invocation_id=self._body,
            content=content,
            timestamp=time.time(),
            custom_metadata=self._asked,
        )


async def _speaker(service: MongoSessionService, name: str, orders: Orders) -> None:
    chance = random.Random(name)  # noqa: S311  no secret
    for number in itertools.count():
        body, outcome = f"{name}.{number}", "spoken"
        which = key(SESSIONS + chance.randrange(SESSIONS))
        owner = {name: which[name] for name in ("user_id", "session_id")}
        speaker: Any = Speaker(service, body)
        try:
            running = await service.start_turn(speaker, **owner, wait=_PATIENCE)
            if chance.random() < STOPPED:
                await service.stop_turn(**which)
            await running.result()
        except (LeaseLostError, StorageUnavailableError, TimeoutError) as error:
            outcome = type(error).__name__
        with Path(orders.journal).open("a") as journal:  # noqa: ASYNC230  it is short
            journal.write(f"{outcome}\n")


def _print_tasks() -> None:
    """Print where each task of this process waits."""
    for task in asyncio.all_tasks():
        sys.stderr.write(f"{task}\n")
        waiting: Any = task.get_coro()
        while frame := getattr(waiting, "cr_frame", None):
            sys.stderr.write(f"  {frame.f_code.co_filename}:{frame.f_lineno}\n")
            waiting = waiting.cr_await


async def _work(orders: Orders) -> None:
    service = MongoSessionService(orders.uri, database=DATABASE, on_conflict="rebase")
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, before_commits, die)
    loop.add_signal_handler(signal.SIGUSR2, _print_tasks)
    faulthandler.register(signal.SIGUSR2, chain=True)  # threads, even if it is blocked
    async with service:
        names = [f"{orders.name}/{number}" for number in range(orders.callers)]
        callers = [
            asyncio.create_task(_caller(service, each, orders)) for each in names
        ]
        callers += [
            asyncio.create_task(_speaker(service, f"{each}s", orders))
            for each in names[:TASKS]
        ]
        await asyncio.to_thread(sys.stdin.read)
        for each in callers:
            each.cancel()
        await asyncio.wait(callers)


@dataclass
class Outcome:
    """The outcome of a campaign."""

    complaints: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    """How bodies ended, by the error's name; ``done`` without one."""
    partials: int = 0
    """How many the listener has received."""
    longest_gaps: list[float] = field(default_factory=list)
    """The longest time without an event while somebody waited for the turn, in seconds,
    for each session."""


class Listener:
    """Watches what running turns say, and notes what must not be heard."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self.complaints: list[str] = []
        self.partials = 0
        self._ready, self._ends = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._listen()))

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(_PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(_PATIENCE)

    async def _listen(self) -> None:
        async with MongoSessionService(self._uri, database=DATABASE) as service:
            watched = [
                await service.watch(
                    *key(SESSIONS + number).values(), partials=True
                ).__aenter__()
                for number in range(SESSIONS)
            ]
            reading = [asyncio.create_task(self._read(each)) for each in watched]
            self._ready.set()
            await asyncio.to_thread(self._ends.wait)
            for each in watched:
                each.close()
            await asyncio.gather(*reading)

    async def _read(self, changes: Subscription) -> None:
        epoch, texts = 0, defaultdict[str, str](str)
        async for change in changes:
            if change.turn is None:
                continue
            if change.turn.epoch < epoch:
                self.complaints.append(f"turn {change.turn.epoch} speaks after {epoch}")
            epoch = change.turn.epoch
            if change.kind == "partial" and change.event and change.event.content:
                self.partials += 1
                texts[change.event.id] += change.event.content.parts[0].text
                words = texts[change.event.id].split()
                if words != [str(number) for number in range(len(words))]:
                    self.complaints.append(f"an answer has a gap: {words}")


class Worker:
    """A process that takes turns, behind a wire of its own."""

    def __init__(self, orders: Orders, address: tuple[str, int] | None) -> None:
        """Start it; without the address of a server, it has the set's, and no wire."""
        self._processes: list[subprocess.Popen[str]] = []
        if address is not None:
            self._processes.append(_python("chaos.wire", address[0], str(address[1])))
            assert self._processes[0].stdout is not None
            port = int(self._processes[0].stdout.readline())
            uri = f"mongodb://127.0.0.1:{port}/?directConnection=true"
            orders = replace(orders, uri=uri)
        self._process = _python("chaos.turns", json.dumps(asdict(orders)))
        self._processes.append(self._process)
        self.pid = self._process.pid

    def kill(self) -> None:
        for each in self._processes:
            each.kill()
            with each:  # closes its pipes, and waits for its end
                pass

    def kill_in_append(self) -> None:
        """End it between the writes of an append, its next one, and their commit."""
        self._process.send_signal(signal.SIGUSR1)
        self._process.wait(_PATIENCE)
        self.kill()

    def pause(self) -> None:
        """Stop the process for a while."""
        self._stop(self._process)

    def cut_off(self) -> None:
        """Stop its wire for a while: it goes on, but for what it needs MongoDB for."""
        self._stop(self._processes[0])

    def _stop(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGSTOP)
        time.sleep(OUTAGE)
        process.send_signal(signal.SIGCONT)

    def print_stacks(self) -> None:
        """Have it print where its threads and tasks wait, within a second."""
        self._process.send_signal(signal.SIGUSR2)
        time.sleep(1.0)

    def finish(self) -> str:
        """Have it end by itself; what is wrong with how it does."""
        try:
            self._process.communicate("", timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self.print_stacks()
            return "a process hangs"
        finally:
            self.kill()
        code = self._process.returncode
        return f"a process has ended with {code}" if code else ""


def _python(module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )


def campaign(
    replica_set: FailingReplicaSet,
    folder: Path,
    faults: list[str],
    callers: int = TASKS,
) -> Outcome:
    """Have processes take turns while the one that holds a turn meets each fault.

    Args:
        replica_set: Of one member, or of several, one of which is deposed right after
            each fault.
        folder: For the journals.
        faults: Methods of :class:`Worker`, one after another.
        callers: How many there are in each of the three processes.
    """
    outcome, uri = Outcome(), replica_set.uri
    is_single = len(replica_set.pids) == 1
    asyncio.run(_prepare(uri))
    names = itertools.count()
    with (
        MongoClient[Any](uri) as admin,
        ExitStack() as ending,
        Listener(uri) as listener,
    ):
        sessions = admin[DATABASE].sessions

        def start() -> Worker:
            number = next(names)
            journal = str(folder / f"{number}.journal")
            ahead = CLOCKS[number % len(CLOCKS)]
            orders = Orders(f"p{number}", uri, journal, callers, ahead)
            worker = Worker(orders, admin.address if is_single else None)
            ending.callback(worker.kill)
            return worker

        workers = [start() for _ in CLOCKS]
        for fault in faults:
            victim = _holder(sessions, workers)
            getattr(victim, fault)()
            if not is_single:
                replica_set.step_down()
            if fault.startswith("kill"):
                workers.remove(victim)
                workers.append(start())
                time.sleep(Limits().lease_seconds)  # others are away for longer
            if not _has_progress(admin):
                for each in workers:
                    each.print_stacks()
                raise AssertionError("a session stands still")
        time.sleep(1.0)
        outcome.complaints += filter(None, [each.finish() for each in workers])
        asyncio.run(_take_last_turns(uri))
        outcome.complaints += listener.complaints
        outcome.partials = listener.partials
        for each in folder.glob("*.journal"):
            outcome.answers.update(each.read_text().split())
        _judge(admin, outcome, TAKEN_OVER + (0 if is_single else ELECTION))
    return outcome


async def _prepare(uri: str) -> None:
    async with MongoSessionService(uri, database=DATABASE) as service:
        for number in range(2 * SESSIONS):
            await service.create_session(**key(number))


async def _take_last_turns(uri: str) -> None:
    """Take a turn of each session, which answers what a dead one has left open."""
    async with MongoSessionService(uri, database=DATABASE) as service:
        for number in range(2 * SESSIONS):
            async with service.turn(**key(number), wait=_PATIENCE):
                pass


def _holder(sessions: Any, workers: list[Worker]) -> Worker:
    """A worker that has just begun a turn."""
    pids = {each.pid: each for each in workers}
    end = time.monotonic() + _PATIENCE
    seen = {each["_id"]["session_id"]: each for each in sessions.find()}
    while time.monotonic() < end:
        time.sleep(0.005)
        for each in sessions.find({"turn.holder": {"$exists": True}}):
            before = seen.get(each["_id"]["session_id"], {}).get("turn", {})
            pid = each["turn"]["holder"]["pid"]
            if each["turn"]["epoch"] != before.get("epoch") and pid in pids:
                return pids[pid]
            seen[each["_id"]["session_id"]] = each
    raise AssertionError("nobody has taken a turn")


def _has_progress(admin: MongoClient[Any]) -> bool:
    """Wait until a body has appended to each session: what a fault has left is over.

    Whoever is dead or away keeps turns, and places in lines, until they expire. If the
    next fault came before, it could hit the same turn's heir, and each takes so long.
    """
    before = _own_events(admin)
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        time.sleep(0.05)
        now = _own_events(admin)
        if all(now[each] > before[each] for each in map(str, range(2 * SESSIONS))):
            return True
    return False


def _own_events(admin: MongoClient[Any]) -> Counter[str]:
    """How many events bodies have appended to each session, without closing ones."""
    own = {"event.author": {"$regex": "/"}, "event.error_code": None}
    by_session = {"_id": "$_id.session_id", "count": {"$sum": 1}}
    found = admin[DATABASE].events.aggregate([{"$match": own}, {"$group": by_session}])
    return Counter({each["_id"]: each["count"] for each in found})


def _judge(admin: MongoClient[Any], outcome: Outcome, longest: float) -> None:
    """Compare what is stored with what turns promise."""
    for number in range(2 * SESSIONS):
        where = {"_id.session_id": str(number)}
        log = list(admin[DATABASE].events.find(where).sort("_id", 1))
        # Closing events are of the body's invocation, and of another author.
        events = [each["event"] for each in log]
        bodies = [it.get("invocation_id") or it["author"] for it in events]
        runs = [body for body, _ in itertools.groupby(bodies)]
        outcome.complaints += [
            f"{body} has appended after another body, in session {number}"
            for body, count in Counter(runs).items()
            if count > 1
        ]
        parts = [
            part
            for each in log
            for part in each["event"].get("content", {}).get("parts", ())
        ]
        calls, answers = (
            Counter(part[kind]["id"] for part in parts if kind in part)
            for kind in ("function_call", "function_response")
        )
        if calls != answers:
            outcome.complaints.append(f"calls and answers differ: {calls - answers}")
        # A closing event's is by the clock of whoever closes, which may be wrong.
        own = [it for it in events if "/" in it["author"] and "error_code" not in it]
        gap = max(
            after["timestamp"]
            - max(before["timestamp"], after["custom_metadata"]["asked"])
            for before, after in itertools.pairwise(own)
        )
        outcome.longest_gaps.append(gap)
        if gap > longest:
            outcome.complaints.append(f"session {number} was stuck for {gap:.1f} s")


if __name__ == "__main__":
    _orders = Orders(**json.loads(sys.argv[1]))
    with machine_ahead(_orders.clock_ahead):
        asyncio.run(_work(_orders))
