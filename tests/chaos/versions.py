"""Versions of messages: processes that edit, flip and delete them, and are killed.

``campaign`` first kills a process before each command by which it edits a message,
flips to a version, deletes one, or fails to begin a turn on a new one. Then several
processes at once do all of it to a few conversations of one user, and each is killed at
some moment.

An observer reads the sessions and events of the user meanwhile, each time as of one
point in time. At the end nothing is left of what was under way.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from typing import Any, Final, Self

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.genai import types
from pymongo import AsyncMongoClient, MongoClient, monitoring
from support.command_log import QuietListener
from support.conversations import OWNER, EchoModel, ask, runner_of
from support.forks import FORKS
from support.replica_set import FailingReplicaSet
from typing_extensions import override

from mongo_session_service import (
    Branch,
    InvalidInputError,
    MongoSessionService,
    MongoSessionServiceError,
)
from mongo_session_service.sessions.fork import FORK_LIFETIME

DATABASE = "versions"
FAMILIES = 3
PROCESSES = 3
MESSAGES = 3
"""Of each conversation."""
MANY = 20
"""Versions of all conversations, some of which are deleted then."""
LATEST_DEATH = 150
"""Commands after which a process that works on and on is dead."""
LOCKED = 2
"""Seconds for which what a dead process has written in a transaction is locked."""
_PATIENCE = 60.0

ACTIONS: Final = ("edit", "flip", "delete_shown", "fail_to_begin")
"""Those that a process is killed at each command of."""

REFUSED: Final = (
    SessionNotFoundError,
    InvalidInputError,
    MongoSessionServiceError,
    IndexError,  # there is none to choose
)


Document = dict[str, Any]


class Deadly(QuietListener):
    """Kills the process before one of its commands is sent, once it is armed."""

    def __init__(self, dies_at: int) -> None:
        self.is_armed = False
        self._left = dies_at

    @override
    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Count, and kill it in time."""
        self._left -= self.is_armed
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Editor:
    """Does to the conversations of a user what users do."""

    def __init__(
        self, service: MongoSessionService, deadly: Deadly, chance: random.Random
    ) -> None:
        self._service = service
        self._deadly = deadly
        self._chance = chance
        self._runner = runner_of(service, EchoModel())

    async def edit(self) -> None:
        await self._branch_off(f"edit {self._chance.random()}")

    async def ask_again(self) -> None:
        await self._branch_off(None)

    async def fail_to_begin(self) -> None:
        """Edit a message while the service is closed: the branch is removed again."""
        turns = self._service._running_turns  # noqa: SLF001  as close() does it
        async with turns.stopped(0):
            await self.edit()

    async def flip(self) -> None:
        which = await self._choose(2, lambda it: not it.is_shown)
        self._deadly.is_armed = True
        await self._service.show_branch(**OWNER, session_id=which)

    async def delete(self) -> None:
        await self._delete(await self._choose(3, lambda it: not it.is_shown))

    async def delete_shown(self) -> None:
        await self._delete(await self._choose(3, lambda it: it.is_shown))

    async def act(self) -> None:
        """Do any of it, on and on."""
        edits = [self.edit, self.edit, self.ask_again, self.flip, self.flip]
        deletions = [self.delete, self.delete_shown]
        while True:
            page = await self._service.find_sessions(**OWNER, families=True)
            is_full = sum(each.branches for each in page.sessions) > MANY
            actions = deletions if is_full else [*edits, self.fail_to_begin]
            with suppress(*REFUSED):
                await self._chance.choice(actions)()

    async def _branch_off(self, text: str | None) -> None:
        said: list[str] = []
        while not said:  # a turn that did not begin has left a branch without any
            which = await self._choose(1, lambda _: True)
            found = await self._service.get_session(**OWNER, session_id=which)
            log = found.events if found else []
            said = [each.invocation_id for each in log if each.author == "user"]
        self._deadly.is_armed = True
        with suppress(*REFUSED):
            await ask(
                *(self._service, text),
                session_id=which,
                runner=self._runner,
                instead_of=self._chance.choice(said),
            )

    async def _delete(self, session_id: str) -> None:
        self._deadly.is_armed = True
        await self._service.delete_session(**OWNER, session_id=session_id)

    async def _choose(self, least: int, is_wanted: Callable[[Branch], bool]) -> str:
        """Choose one of a conversation that has so many versions."""
        page = await self._service.find_sessions(**OWNER, families=True)
        enough = [each.id for each in page.sessions if each.branches >= least]
        family = await self._service.find_branches(
            **OWNER, session_id=self._chance.choice(enough)
        )
        return self._chance.choice([it.session_id for it in family if is_wanted(it)])


@dataclass(frozen=True)
class Orders:
    uri: str
    seed: str
    action: str
    """What it does: a method of :class:`Editor`."""
    dies_at: int
    """The number of the command that it does not send."""


def work(orders: Orders) -> None:
    asyncio.run(_work(orders))


async def _work(orders: Orders) -> None:
    logging.disable()
    deadly = Deadly(orders.dies_at)
    chance = random.Random(orders.seed)  # noqa: S311  no secret
    async with AsyncMongoClient[Any](orders.uri, event_listeners=[deadly]) as client:
        service = MongoSessionService(client=client, database=DATABASE)
        editor = Editor(service, deadly, chance)
        await getattr(editor, orders.action)()
        deadly.is_armed = False
        await service.close()


@dataclass
class Outcome:
    """The outcome of a campaign."""

    complaints: list[str] = field(default_factory=list)
    killed: Counter[str] = field(default_factory=Counter)
    """How many processes were killed, by what they did."""
    snapshots: int = 0
    """How often the observer has read everything."""
    seen: set[str] = field(default_factory=set)
    """The sessions that it has seen."""


class Observer:
    """Reads what is stored, again and again, and compares it with what is promised."""

    def __init__(self, uri: str, outcome: Outcome) -> None:
        self._client = MongoClient[Any](uri)
        self._outcome = outcome
        self._logs: dict[str, list[Document]] = {}
        """The events of each session, as they were read last."""
        self._roots: dict[str, Document] = {}
        """The documents of sessions that nobody appends to."""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._observe)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(_PATIENCE)
        self.look()
        self._client.close()

    def _observe(self) -> None:
        try:
            while not self._ends.is_set():
                self.look()
                time.sleep(0.01)
        except BaseException as error:  # noqa: BLE001  else nobody learns of it
            self._complain(f"the observer has failed: {error!r}")

    def _complain(self, what: str) -> None:
        if len(self._outcome.complaints) < 100:
            self._outcome.complaints.append(what)

    def look(self) -> None:
        database = self._client[DATABASE]
        with self._client.start_session(snapshot=True) as reading:
            sessions = [*database.sessions.find({}, session=reading)]
            families = [*database.families.find({}, session=reading)]
            events = [*database.events.find({}, session=reading).sort("_id", 1)]
        self._outcome.snapshots += 1
        logs = defaultdict[str, list[Document]](list)
        for each in events:
            logs[each["_id"]["session_id"]].append(each)
        stored = {each["_id"]["session_id"]: each for each in sessions}
        if orphans := logs.keys() - stored.keys():
            self._complain(f"events without a session: {orphans}")
        self._check_families(families, sessions)
        for id_, session in stored.items():
            if "revision" in session:
                self._outcome.seen.add(id_)
                self._check_session(id_, session, logs[id_])
                for origin in session.get("forked_from", ()):
                    self._check_copy(id_, logs[id_], origin, logs)

    def _check_families(
        self, families: list[Document], sessions: list[Document]
    ) -> None:
        members = defaultdict[str, set[str]](set)
        for each in sessions:
            if "family" in each:
                members[each["family"]].add(each["_id"]["session_id"])
            if "family" in each and {"title", "labels"} & each.keys():
                self._complain(f"{each['_id']} has a title of its own")
        if members.keys() != {each["_id"]["family"] for each in families}:
            self._complain(f"{len(families)} families, and {len(members)} are named")
        for family in families:
            left = [it["id"] for it in family["members"] if "gone" not in it]
            if {*left} != members[family["_id"]["family"]]:
                self._complain(f"a family has {left}")
            if family["shown"] not in left:
                self._complain(f"{len(left)} versions show {family['shown']}")
            if family.get("title") != family["members"][0]["id"]:
                self._complain(f"a family has the title {family.get('title')}")

    def _check_session(self, id_: str, session: Document, log: list[Document]) -> None:
        revisions = [each["_id"]["revision"] for each in log]
        if revisions != [*range(1, session["revision"] + 1)]:
            self._complain(f"{id_} of revision {session['revision']} has {revisions}")
        state: Document = dict(session.get("initial_state", {}))
        for each in log:
            state |= each["event"].get("actions", {}).get("state_delta", {})
        if state != session["state"]:
            self._complain(f"{id_} has state {session['state']} instead of {state}")
        before = self._logs.get(id_, [])
        if log[: len(before)] != before:
            self._complain(f"events of {id_} have changed")
        self._logs[id_] = log
        names = ("state", "revision", "create_time", "update_time")
        content = {name: session[name] for name in names}
        if id_.startswith("root"):
            if self._roots.setdefault(id_, content) != content:
                self._complain(f"{id_} has changed")
            if len(log) != 2 * MESSAGES:
                self._complain(f"{id_} has {len(log)} events")

    def _check_copy(
        self, id_: str, log: list[Document], origin: Document, logs: dict[str, Any]
    ) -> None:
        """Compare what a branch has of a session that is still there."""
        count = origin["revision"]
        copied = [each["event"] for each in log[:count]]
        shared = [each["event"] for each in logs.get(origin["session_id"], [])[:count]]
        if len(copied) != count or (shared and copied != shared):
            self._complain(f"{id_} has not what it shares with {origin}")


async def _prepare(uri: str) -> None:
    """Store the conversations, each of which has a title and some state."""
    async with MongoSessionService(uri, database=DATABASE) as service:
        for number in range(FAMILIES):
            id_ = f"root {number}"
            session = await service.create_session(
                **OWNER, session_id=id_, title=id_, state={"said": 0}
            )
            for said in range(MESSAGES):
                own = {"invocation_id": f"{id_}.{said}"}
                content = types.UserContent(f"message {said}")
                actions = EventActions(state_delta={"said": said + 1})
                for event in (
                    Event(author="user", content=content, actions=actions, **own),
                    Event(author="agent", content=types.ModelContent("well"), **own),
                ):
                    await service.append_event(session, event)
            for _ in range(2):
                await ask(*(service, "edited"), session_id=id_, instead_of=f"{id_}.1")


_ONE_AT_A_TIME = threading.Lock()
"""Whoever starts a process looks for the ends of all, each of which is read once."""


def _run(orders: Orders, seconds: float) -> int | None:
    """Run a process, which is killed after so many seconds; return its exit code."""
    process = FORKS.Process(target=work, args=(orders,))
    with _ONE_AT_A_TIME:
        process.start()
    wait([process.sentinel], seconds)
    with suppress(ProcessLookupError):
        process.kill()
    wait([process.sentinel], _PATIENCE)
    with _ONE_AT_A_TIME:
        return process.exitcode


def _kill_at_each_command(uri: str, outcome: Outcome, action: str) -> None:
    for number in range(1, LATEST_DEATH):
        code = _run(Orders(uri, f"{number}", action, number), _PATIENCE)
        if code != -signal.SIGKILL:
            break
        outcome.killed[action] += 1
    if code:
        outcome.complaints.append(f"{action} has ended with {code}")


def _kill_again_and_again(uri: str, outcome: Outcome, end: float, seed: str) -> None:
    chance = random.Random(seed)  # noqa: S311  no secret
    while (left := end - time.monotonic()) > 0:
        dies_at = chance.randint(1, LATEST_DEATH)
        orders = Orders(uri, f"{chance.random()}", "act", dies_at)
        code = _run(orders, min(chance.uniform(0.2, 4.0), left))
        outcome.killed["act"] += 1
        if code != -signal.SIGKILL:
            outcome.complaints.append(f"a process has ended with {code}")


async def _finish(uri: str, outcome: Outcome) -> None:
    """Prune what was under way, a minute later; compare what the service returns."""
    with MongoClient[Any](uri) as admin:
        database = admin[DATABASE]
        late = {"held_by": {"$exists": True}, "expire_time": {"$gt": 0}}
        later = {"$inc": {"expire_time": -FORK_LIFETIME}}
        database.sessions.update_many(late, later)
        async with MongoSessionService(uri, database=DATABASE) as service:
            await service.prune()
            rows = (await service.find_sessions(**OWNER, limit=1000)).sessions
            page = await service.find_sessions(**OWNER, families=True, limit=1000)
            shown = {each.id: each.branches for each in page.sessions}
            for each in rows:
                family = await service.find_branches(**OWNER, session_id=each.id)
                names = [it.session_id for it in family if it.is_shown]
                if len(names) != 1 or shown.get(names[0]) != len(family):
                    outcome.complaints.append(f"{names} of {len(family)} in {shown}")
        if left := [*database.sessions.find({"revision": {"$exists": False}})]:
            outcome.complaints.append(f"left in sessions: {left}")


def _at_once(actions: Iterable[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=each) for each in actions]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def campaign(replica_set: FailingReplicaSet, seconds: float, seed: int = 7) -> Outcome:
    """Kill processes at each command, and then at any moment for some seconds."""
    uri, outcome = replica_set.uri, Outcome()
    with MongoClient[Any](uri) as admin:
        lasts = {"transactionLifetimeLimitSeconds": LOCKED}
        admin.admin.command("setParameter", 1, **lasts)
    asyncio.run(_prepare(uri))
    with Observer(uri, outcome):
        _at_once(partial(_kill_at_each_command, uri, outcome, each) for each in ACTIONS)
        end = time.monotonic() + seconds
        _at_once(
            partial(_kill_again_and_again, uri, outcome, end, f"{seed} {number}")
            for number in range(PROCESSES)
        )
        asyncio.run(_finish(uri, outcome))
    return outcome
