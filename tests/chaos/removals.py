"""Redactions, deletions and erasures beside turns, forks and readers, under faults.

``campaign`` has users come and go. Each has sessions whose agents speak, call and set
state and titles; some are forked, copies trimmed, messages asked again, and events of
them redacted. When a user leaves, everything is
erased at once, whatever is under way. Consumers that fail are in a process that is
killed again and again, so that they are away. Clients read streams over HTTP, slowly.

At the end no collection has what was removed: each text is of one event alone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import subprocess
import sys
import time
import types
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.genai import types as genai
from pymongo import MongoClient
from support.http_paths import app_of
from support.http_server import serving
from support.raw_search import find_traces
from support.replica_set import FailingReplicaSet

from mongo_session_service import (
    Change,
    MongoSessionService,
    MongoSessionServiceError,
)

DATABASE = "removals"
APP = "app"
SESSIONS = 3
"""Of each user, who begins with so many."""
AT_ONCE = 3
"""Users at the same time, and tasks of each of them."""
PIECES = 8
"""Of what an agent says, each with the text."""
_PATIENCE = 120.0

Refused = (
    SessionNotFoundError,
    AlreadyExistsError,
    MongoSessionServiceError,
    TimeoutError,
)


@dataclass
class Outcome:
    """The outcome of a campaign."""

    removed: set[str] = field(default_factory=set)
    """Texts of events, and ids of users, that are to be nowhere."""
    done: Counter[str] = field(default_factory=Counter)
    """What was done, and how often."""
    left: list[tuple[str, str]] = field(default_factory=list)
    """What was removed and is in a collection."""


def secret() -> str:
    return f"secret-{uuid.uuid4().hex}"


def told(text: str, *, id_: str | None = None, partial: bool | None = None) -> Event:
    """An event that says a text, and sets it in state unless it is partial."""
    named = {"displayName": text}
    state = {"own": text, "user:of": text, "__session_metadata__": named}
    delta = {} if partial else state
    content = genai.Content(role="model", parts=[genai.Part(text=text)])
    return Event(
        id=id_ or uuid.uuid4().hex,
        author="agent",
        invocation_id="i",
        content=content,
        partial=partial,
        actions=EventActions(state_delta=delta),
    )


class Speaker:
    """What a running turn runs: it says a text in pieces, and then as an event."""

    app_name = APP

    def __init__(self, service: MongoSessionService, text: str) -> None:
        self.agent = types.SimpleNamespace(name="agent")
        self._service = service
        self.event = told(text)
        self._text = text

    async def run_async(
        self, *, user_id: str, session_id: str, **_: object
    ) -> AsyncGenerator[Event, None]:
        """Yield pieces, and yield and append the whole."""
        ids = {"app_name": APP, "user_id": user_id, "session_id": session_id}
        session = await self._service.get_session(**ids)
        if session is None:
            return
        for _ in range(PIECES):
            yield told(self._text, id_=self.event.id, partial=True)
            await asyncio.sleep(0.05)
        yield await self._service.append_event(session, self.event)


class Asker:
    """What a turn runs that asks: it appends the message, and answers nothing of it."""

    app_name = APP

    def __init__(self, service: MongoSessionService) -> None:
        self.agent = types.SimpleNamespace(name="agent")
        self._service = service
        self.event = told("")

    async def run_async(
        self,
        *,
        user_id: str,
        session_id: str,
        new_message: genai.Content,
        state_delta: dict[str, Any],
        **_: object,
    ) -> AsyncGenerator[Event, None]:
        """Yield and append the message."""
        ids = {"app_name": APP, "user_id": user_id, "session_id": session_id}
        if session := await self._service.get_session(**ids):
            self.event = Event(
                id=uuid.uuid4().hex,
                author="user",
                invocation_id=uuid.uuid4().hex,
                content=new_message,
                actions=EventActions(state_delta=state_delta),
            )
            yield await self._service.append_event(session, self.event)


class User:
    """A user who comes, does much at once, and is erased in the midst of it."""

    def __init__(
        self, service: MongoSessionService, outcome: Outcome, chance: random.Random
    ) -> None:
        self._service = service
        self._outcome = outcome
        self._chance = chance
        self.id = f"{uuid.uuid4().hex}@example.com"
        self._sessions = [uuid.uuid4().hex for _ in range(SESSIONS)]
        self._events: dict[str, tuple[str, str]] = {}
        """The session and the text of events that are known to be stored, by id."""
        self._asked: list[tuple[str, str]] = []
        """The session and the invocation of messages that may be asked again."""
        self._texts: list[str] = []
        self._is_leaving = False

    async def live(self) -> None:
        """Come, stay for some seconds, and go."""
        for session_id in self._sessions:
            await until_done(
                lambda s=session_id: self._service.create_session(**self._ids(s))
            )
        acting = [asyncio.create_task(self._act()) for _ in range(AT_ONCE)]
        await asyncio.sleep(self._chance.uniform(2, 6))
        self._is_leaving = True
        erasing = {"app_name": APP, "user_id": self.id}
        await until_done(lambda: self._service.delete_user(**erasing))
        self._outcome.done["erased"] += 1
        await asyncio.wait(acting)
        for each in acting:
            each.result()
        self._outcome.removed |= {self.id, *self._texts}

    async def _act(self) -> None:
        actions = [self._append, self._append, self._speak, self._fork, self._redact]
        actions += [self._delete_fork, self._trim_copy, self._ask, self._ask_again]
        while not self._is_leaving:
            action = self._chance.choice(actions)
            try:
                await action(self._chance.choice(self._sessions))
                self._outcome.done[action.__name__.strip("_")] += 1
            except Refused as error:
                self._outcome.done[type(error).__name__] += 1

    def _ids(self, session_id: str) -> dict[str, str]:
        return {"app_name": APP, "user_id": self.id, "session_id": session_id}

    def _text(self) -> str:
        self._texts.append(text := secret())
        return text

    async def _append(self, session_id: str) -> None:
        event = told(text := self._text())
        await self._service.append(**self._ids(session_id), event=event)
        self._events[event.id] = session_id, text

    async def _speak(self, session_id: str) -> None:
        speaker: Any = Speaker(self._service, text := self._text())
        owner = {"user_id": self.id, "session_id": session_id}
        running = await self._service.start_turn(speaker, **owner, wait=20)
        await running.result()
        self._events[speaker.event.id] = session_id, text

    async def _fork(self, session_id: str) -> None:
        forked = await self._service.fork_session(**self._ids(session_id))
        if self._chance.random() < 0.5:
            await self._service.fork_session(**self._ids(forked.id))

    async def _delete_fork(self, session_id: str) -> None:
        found = await self._service.list_sessions(app_name=APP, user_id=self.id)
        forks = [it.id for it in found.sessions if it.id not in self._sessions]
        if forks:
            await self._service.delete_session(**self._ids(self._chance.choice(forks)))
        else:
            await self._append(session_id)

    async def _trim_copy(self, _: str) -> None:
        found = await self._service.list_sessions(app_name=APP, user_id=self.id)
        copies = [it.id for it in found.sessions if it.id not in self._sessions]
        if copies:
            ids = self._ids(self._chance.choice(copies))
            await self._service.trim_session(**ids, keep_last=1)

    async def _ask(self, session_id: str) -> None:
        text = self._text()
        message = genai.UserContent(text)
        asker = await self._run(
            session_id, new_message=message, state_delta={"asked": text}
        )
        self._events[asker.event.id] = session_id, text

    async def _ask_again(self, _: str) -> None:
        if self._asked:
            session_id, invocation = self._chance.choice(self._asked)
            await self._run(session_id, instead_of=invocation)

    async def _run(self, session_id: str, **how: Any) -> Asker:
        asker: Any = Asker(self._service)
        owner = {"user_id": self.id, "session_id": session_id}
        running = await self._service.start_turn(asker, **owner, wait=20, **how)
        await running.result()
        self._asked.append((running.session_id, asker.event.invocation_id))
        return asker

    async def _redact(self, _: str) -> None:
        if not self._events:
            return
        id_ = self._chance.choice([*self._events])
        session_id, text = self._events.pop(id_)
        await self._service.redact_events(
            **self._ids(session_id), event_ids=[id_], state=True, forks=True
        )
        self._outcome.removed.add(text)


async def until_done(call: Callable[[], Awaitable[object]]) -> None:
    """Call again and again until it is known to be done, as an application would."""
    for _ in itertools.count():
        try:
            await call()
        except AlreadyExistsError:
            return
        except MongoSessionServiceError:
            await asyncio.sleep(0.1)
        else:
            return


async def come_and_go(
    service: MongoSessionService, outcome: Outcome, seed: str, end: float
) -> None:
    chance = random.Random(seed)  # noqa: S311  no secret
    while time.monotonic() < end:
        await User(service, outcome, chance).live()


async def read_slowly(
    url: str, service: MongoSessionService, outcome: Outcome, end: float
) -> None:
    """Read the stream of a session that there is, some bytes at a time, and another."""
    address = urlsplit(url)
    while time.monotonic() < end:
        await asyncio.sleep(0.3)
        with suppress(*Refused):
            found = (await service.list_sessions(app_name=APP)).sessions
            if found:
                of = found[-1]
                path = f"/apps/{APP}/users/{of.user_id}/sessions/{of.id}/changes"
                outcome.done["bytes"] += await _read_some(address, path)


async def _read_some(address: SplitResult, path: str) -> int:
    """Read a stream for some seconds, or until it ends; count its bytes."""
    size = 0
    reader, writer = await asyncio.open_connection(
        address.hostname, address.port, limit=1024
    )
    try:
        asked = f"GET {path}?partials=true HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n"
        writer.write(asked.encode())
        with suppress(TimeoutError, OSError):
            async with asyncio.timeout(8):
                while some := await reader.read(64):
                    size += len(some)
                    await asyncio.sleep(0.05)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    return size


async def _consume(uri: str) -> None:
    """Read as two consumers whose handlers fail now and then, until it is killed."""

    def handle(change: Change, *_: object) -> None:
        if change.kind != "deleted" and random.random() < 0.3:  # noqa: S311
            raise ValueError(str(change))

    async with (
        MongoSessionService(uri, database=DATABASE) as service,
        asyncio.TaskGroup() as both,
    ):
        for name, is_transactional in CONSUMERS.items():
            consumer = service.consumer(name)
            running = consumer.run(
                handle, max_attempts=2, transactional=is_transactional
            )
            both.create_task(running)


CONSUMERS = {"plain": False, "transactional": True}


async def go_away_and_come_back(uri: str, end: float) -> None:
    """Run consumers in a process that is killed, and started again later."""
    while time.monotonic() < end:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "chaos.removals", uri),
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stderr=subprocess.DEVNULL,
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(min(9, max(0.1, end - time.monotonic()))):
                await process.wait()
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await asyncio.sleep(2)


async def depose(replica_set: FailingReplicaSet, end: float, pause: float) -> None:
    while time.monotonic() + pause < end:
        await asyncio.sleep(pause)
        await asyncio.to_thread(replica_set.step_down)


async def _work(
    replica_set: FailingReplicaSet, seconds: float, seed: int, pause: float
) -> Outcome:
    outcome, end = Outcome(), time.monotonic() + seconds
    uri = replica_set.uri
    async with AsyncExitStack() as stack:
        services = [
            await stack.enter_async_context(
                MongoSessionService(uri, database=DATABASE, on_conflict="rebase")
            )
            for _ in range(2)
        ]
        for name in CONSUMERS:
            async with services[0].consumer(name):
                pass
        url = await stack.enter_async_context(serving(app_of(services[1])))
        async with asyncio.TaskGroup() as tasks:
            for number in range(AT_ONCE):
                service, course = services[number % 2], f"{seed} {number}"
                tasks.create_task(come_and_go(service, outcome, course, end))
                tasks.create_task(read_slowly(url, service, outcome, end))
            tasks.create_task(go_away_and_come_back(uri, end))
            tasks.create_task(depose(replica_set, end, pause))
    async with MongoSessionService(uri, database=DATABASE) as service:

        def fail(change: Change) -> None:
            if change.kind != "deleted":
                raise ValueError

        for name in CONSUMERS:
            async with asyncio.timeout(_PATIENCE):
                consumer = service.consumer(name)
                await consumer.run(fail, max_attempts=1, until_caught_up=True)
                kept = len([None async for _ in consumer.dead_letters()])
                outcome.done["dead letters"] += kept
        await service.prune()
    return outcome


def campaign(
    replica_set: FailingReplicaSet, seconds: float, seed: int = 7, pause: float = 6.0
) -> Outcome:
    """Have users come and go, and find what is left of them.

    Args:
        replica_set: Whose primary is deposed every ``pause`` seconds.
        seconds: For how long.
        seed: Of what the users do.
        pause: See above.
    """
    outcome = asyncio.run(_work(replica_set, seconds, seed, pause))
    with MongoClient[Any](replica_set.uri) as admin:
        outcome.left = find_traces(outcome.removed, admin, DATABASE)
    return outcome


if __name__ == "__main__":
    asyncio.run(_consume(sys.argv[1]))
