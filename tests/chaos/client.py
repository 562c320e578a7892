"""A process full of clients: ``python -m chaos.client`` with its orders as JSON.

It works until its standard input is closed, or it is killed.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.adk.sessions import Session
from support.dying_process import before_commits, die
from support.fake_clock import machine_ahead

from chaos.calls import Calls
from chaos.history import Journal, Key
from chaos.readers import APPS, USERS, consume, follow, watch
from mongo_session_service import MongoSessionService, MongoSessionServiceError
from mongo_session_service.storage.loop_thread import THREAD_NAME

CONTESTED = 4
"""Sessions of a user that everyone writes to, and deletes and creates anew."""
LENGTH = 150
"""Events after which a client takes another session."""


@dataclass(frozen=True)
class Orders:
    """The orders of a process."""

    name: str
    """Unique in the run."""
    uri: str
    database: str
    journal: str
    seed: int
    loops: int
    clients: int
    """In each loop."""
    pause: float
    """Seconds on the average between two calls of a client."""
    clock_ahead: float
    """Seconds that its clock is ahead."""


def some_delta(chance: random.Random) -> dict[str, Any]:
    """Keys to be set, of all scopes."""
    keys = [f"k{chance.randrange(5)}"]
    if chance.random() < 0.15:
        keys.append(f"user:{chance.randrange(4)}")
    if chance.random() < 0.1:
        number = chance.randrange(4)
        keys += [f"app:{number}", f"app:and {number}"]
    return dict.fromkeys(keys)


class Client:
    """Writes to a session of its own, and now and then to those of all."""

    def __init__(
        self, calls: Calls, name: str, chance: random.Random, orders: Orders
    ) -> None:
        self._calls = calls
        self._name = name
        self._chance = chance
        self._pause = orders.pause
        self._sessions = 0

    async def run(self, is_over: Callable[[], bool]) -> None:
        """Work until the run is over."""
        session: Session | None = None
        while not is_over():
            if session is None or len(session.events) >= LENGTH:
                session = await self._new_session()
                continue
            session = await self._step(session)
            if self._pause:
                await asyncio.sleep(self._chance.expovariate(1 / self._pause))

    async def _new_session(self) -> Session | None:
        self._sessions += 1
        key = self._key(f"{self._name}-{self._sessions}")
        delta = some_delta(self._chance)
        return await self._calls.create(key, delta, is_owner=True)

    def _key(self, session_id: str) -> Key:
        user = f"u{self._chance.randrange(USERS)}"
        return Key(self._chance.choice(APPS), user, session_id)

    async def _step(self, session: Session) -> Session:
        key = Key(session.app_name, session.user_id, session.id)
        match self._chance.random():
            case each if each < 0.06:
                await self._calls.get(key)
            case each if each < 0.08:
                await self._calls.look(key)
            case each if each < 0.14:
                await self._contest()
            case _:
                await self._calls.append(
                    session, some_delta(self._chance), is_owner=True
                )
        return session

    async def _contest(self) -> None:
        """Do something to a session that others are at as well."""
        key = self._key(f"contested {self._chance.randrange(CONTESTED)}")
        session = await self._calls.get(key)
        if session is None:
            session = await self._calls.create(
                key, some_delta(self._chance), is_owner=False
            )
        if session is None:
            return
        for _ in range(self._chance.randrange(4)):
            if not await self._calls.append(session, some_delta(self._chance)):
                break
        if self._chance.random() < 0.2:
            await self._calls.delete(key)


async def work(
    orders: Orders,
    service: MongoSessionService,
    journal: Journal,
    number: int,
    over: threading.Event,
) -> None:
    """Run the clients of one event loop, and in the first the readers as well."""
    loop = f"{orders.name}.{number}"

    async def call() -> None:
        async with asyncio.TaskGroup() as clients:
            for each in range(orders.clients):
                name = f"{loop}.{each}"
                chance = random.Random(f"{orders.seed} {name}")  # noqa: S311
                calls = Calls(service, journal, loop, name, chance)
                client = Client(calls, name, chance, orders)
                clients.create_task(client.run(over.is_set))
        Path(orders.journal).with_name(f"{loop}.idle").touch()

    async with asyncio.TaskGroup() as group:
        group.create_task(call())
        if number == 0:
            chance = random.Random(f"{orders.seed} {loop}")  # noqa: S311
            ended = asyncio.Event()

            async def watch_all() -> None:
                await watch(service, journal, f"{loop} watch")
                ended.set()

            group.create_task(watch_all())
            name = f"all@{loop}"
            group.create_task(consume(service, journal, name, over.is_set))
            name = f"{loop} follow"
            group.create_task(
                follow(service, journal, name, chance, over.is_set, ended)
            )


def main(argument: str) -> str | None:
    """Do as ordered, until nobody holds the other end of the standard input.

    Returns what went wrong, if anything.
    """
    orders = Orders(**json.loads(argument))
    journal = Journal(Path(orders.journal))
    over = threading.Event()
    service = MongoSessionService(orders.uri, database=orders.database)
    failures: list[str] = []

    def run(number: int) -> None:
        try:
            asyncio.run(work(orders, service, journal, number, over))
        except (Exception, ExceptionGroup) as error:
            failures.append(repr(error))
            over.set()
            raise

    # For a kill between the writes of the next transaction and their commit.
    signal.signal(signal.SIGUSR1, lambda *_: before_commits(die))
    threads = [threading.Thread(target=run, args=[n]) for n in range(orders.loops)]
    with machine_ahead(orders.clock_ahead):
        for thread in threads:
            thread.start()
        sys.stdin.read()
        over.set()
        for thread in threads:
            thread.join()
        try:
            asyncio.run(service.close())
        except MongoSessionServiceError as error:
            failures.append(repr(error))
    failures += [
        f"{each.name} is left"
        for each in threading.enumerate()
        if each.name.startswith("mongo") and each.name != THREAD_NAME  # which stays
    ]
    return "\n".join(failures) or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
