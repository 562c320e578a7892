"""A run: processes full of clients, a nemesis, and at last the judge."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from pymongo import MongoClient
from support.replica_set import FailingReplicaSet

from chaos.check import check
from chaos.client import Orders
from chaos.history import History, Journal, read_journals
from chaos.nemesis import CLIENTS, Nemesis
from chaos.readers import THE_END, consume
from chaos.sampling import Sample, sample
from chaos.stored import open_transactions, read_stored
from mongo_session_service import MongoSessionService

DATABASE = "chaos"
CLOCKS = (0.0, 600.0, -600.0)
"""Seconds that the clocks of processes are ahead, in turn."""
PATIENCE = 150.0
"""Seconds in which every client has to end that received to."""


_KILLED = 10.0
"""Seconds that a process has to begin a transaction."""


@dataclass(frozen=True)
class Plan:
    """How a run is to go."""

    seed: int
    seconds: float
    processes: int = 2
    loops: int = 2
    clients: int = 6
    """In each loop of each process."""
    pause: float = 0.0
    """Seconds on the average between two calls of a client."""
    freeze: float = 4.0
    """For how many seconds a primary is stopped."""
    calm: float = 1.0
    """Seconds on the average between two faults."""
    faults: tuple[str, ...] | None = None
    """Which, each in its turn; None for all, in random order."""
    uri_options: str = ""
    """What follows in the URI of the clients, as in ``&timeoutMS=5000``."""


@dataclass
class Outcome:
    """How it went."""

    complaints: list[str]
    history: History
    faults: dict[str, int]
    samples: list[Sample] = field(default_factory=list)
    began: float = 0.0


class Process:
    """A process full of clients."""

    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.client", json.dumps(asdict(orders))],
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_at_work(self) -> bool:
        """True if it has been answered anything."""
        journal = Path(self.orders.journal)
        return journal.exists() and b'"answer"' in journal.read_bytes()

    def kill(self) -> None:
        """End it at once, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self.stop()

    def kill_in_transaction(self) -> None:
        """End it between the writes of its next transaction and their commit."""
        self._process.send_signal(signal.SIGUSR1)
        with suppress(subprocess.TimeoutExpired):  # it waits for a dead one's lock
            self._process.wait(_KILLED)
        self.kill()

    def stop(self) -> None:
        """Tell it to finish what it is doing."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def ended(self, patience: float) -> str:
        """A complaint about how it has ended, if there is one."""
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(patience)
            return f"{self.orders.name} has ended with {code}" if code else ""
        self.kill()
        return f"{self.orders.name} hangs"


def run(
    plan: Plan,
    replica_set: FailingReplicaSet,
    folder: Path,
    progress: Callable[[str, Sample], None] = lambda *_: None,
) -> Outcome:
    """Have clients work, and things go wrong, for a while; then judge it.

    Args:
        plan: How.
        replica_set: Three members, started.
        folder: For the journals.
        progress: Received what happens, now and then.
    """
    return _Run(plan, replica_set, folder, progress).run()


class _Run:
    def __init__(
        self,
        plan: Plan,
        replica_set: FailingReplicaSet,
        folder: Path,
        progress: Callable[[str, Sample], None],
    ) -> None:
        self._plan = plan
        self._replica_set = replica_set
        self._folder = folder
        self._progress = progress
        self._uri = f"{replica_set.uri}&heartbeatFrequencyMS=500{plan.uri_options}"
        self._nemesis = Nemesis(replica_set, plan.freeze)
        self._numbers = itertools.count(1)
        self._processes: list[Process] = []
        self._samples: list[Sample] = []
        self._began = time.monotonic()

    def run(self) -> Outcome:
        complaints: list[str] = []
        asyncio.run(self._set_up())
        self._processes = [self._start() for _ in range(self._plan.processes)]
        try:
            while not all(each.is_at_work for each in self._processes):
                time.sleep(0.1)
            self._began = time.monotonic()
            self._torment()
            for process in self._processes:
                process.stop()
            asyncio.run(self._end())
            complaints += [each.ended(PATIENCE) for each in self._processes]
        finally:
            for process in self._processes:
                process.kill()
        asyncio.run(self._read_on())
        with MongoClient[Any](self._replica_set.uri) as client:
            _settle(client)
            stored = read_stored(client, DATABASE)
        history = History(*read_journals(sorted(self._folder.glob("*.jsonl"))), stored)
        complaints += check(history)
        return Outcome(
            [each for each in complaints if each],
            history,
            self._nemesis.done,
            self._samples,
            self._began,
        )

    def _start(self) -> Process:
        number = next(self._numbers)
        name = f"p{number}"
        plan = self._plan
        return Process(
            Orders(
                name=name,
                uri=f"{self._uri}&appName={CLIENTS}",
                database=DATABASE,
                journal=str(self._folder / f"{name}.jsonl"),
                seed=plan.seed,
                loops=plan.loops,
                clients=plan.clients,
                pause=plan.pause,
                clock_ahead=CLOCKS[number % len(CLOCKS)],
            )
        )

    def _torment(self) -> None:
        """Let things go wrong until time is up."""
        plan, chance = self._plan, random.Random(self._plan.seed)  # noqa: S311
        kills = {
            "SIGKILL of a client": Process.kill,
            "SIGKILL in a transaction": Process.kill_in_transaction,
        }
        names = [*self._nemesis.faults, *kills]
        deck = iter(plan.faults or ())
        over = self._began + plan.seconds
        while True:
            pause = chance.uniform(0.5, 1.5) * plan.calm
            while pause > 0 and time.monotonic() < over:
                self._look("")
                time.sleep(min(pause, 1))
                pause -= 1
            name = next(deck, "") if plan.faults else chance.choice(names)
            if not name or (not plan.faults and time.monotonic() > over):
                return
            self._look(name)
            if name in kills:
                self._replace_client(name, kills[name])
            else:
                self._nemesis.strike(name, chance)

    def _replace_client(self, name: str, kill: Callable[[Process], None]) -> None:
        """Kill the youngest process, and start another."""
        kill(self._processes.pop())
        self._processes.append(self._start())
        self._nemesis.done[name] = self._nemesis.done.get(name, 0) + 1

    def _look(self, what: str) -> None:
        """Take a sample, not too often, and tell of it."""
        at = time.monotonic() - self._began
        if what or not self._samples or at - self._samples[-1].at >= 1:
            pids = [each.pid for each in self._processes]
            self._samples.append(sample(at, pids))
            self._progress(what, self._samples[-1])

    def _is_idle(self, orders: Orders) -> bool:
        return len(list(self._folder.glob(f"{orders.name}.*.idle"))) == orders.loops

    async def _set_up(self) -> None:
        async with MongoSessionService(self._uri, database=DATABASE):
            pass

    async def _end(self) -> None:
        """Make the last change of the run, when everyone has finished."""
        async with asyncio.timeout(PATIENCE):
            # They are processes: there is no event for it.
            while not all(  # noqa: ASYNC110
                self._is_idle(each.orders) for each in self._processes
            ):
                await asyncio.sleep(0.1)
        async with MongoSessionService(self._uri, database=DATABASE) as service:
            journal = Journal(self._folder / "the end.jsonl")
            journal.write(
                call="the end", loop="", kind="create", key=THE_END,
                at=time.monotonic(), born="", delta={"born": "the end"}, owner=False,
            )  # fmt: skip
            app, user, name = THE_END
            with suppress(AlreadyExistsError):
                session = await service.create_session(
                    app_name=app, user_id=user, session_id=name,
                    state={"born": "the end"},
                )  # fmt: skip
            journal.write(
                call="the very end", loop="", kind="append", key=THE_END,
                at=time.monotonic(), born="the end", delta={}, owner=False,
            )  # fmt: skip
            await service.append_event(session, Event(id="the very end", author="x"))
            journal.answer("the very end", "ok", revision=1)

    async def _read_on(self) -> None:
        """Finish what killed processes have begun: reading, and deleting."""
        async with MongoSessionService(self._uri, database=DATABASE) as service:
            journal = Journal(self._folder / "the rest.jsonl")
            async with asyncio.timeout(PATIENCE):
                await consume(service, journal, "all@last", lambda: False)
            await service.prune()


def _settle(client: MongoClient[Any]) -> None:
    """Wait until the transactions of killed processes are over: it takes a minute."""
    deadline = time.monotonic() + 90
    while open_transactions(client) and time.monotonic() < deadline:
        time.sleep(0.1)
