"""Many writers in two processes, all of one session."""

from __future__ import annotations

import asyncio
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress

from google.adk.errors import StaleSessionError
from google.adk.events import Event
from google.adk.sessions import Session
from support.forks import FORKS
from support.function_calls import called, responded

from mongo_session_service import MongoSessionService

KEY = {"app_name": "app", "user_id": "user", "session_id": "s"}
WRITERS = 5
TURNS = 2


async def read(service: MongoSessionService) -> Session:
    session = await service.get_session(**KEY)
    assert session is not None
    return session


async def append(service: MongoSessionService, session: Session, call: Event) -> None:
    """Append a call, behind the response to another writer's if that is still open."""
    while True:
        with suppress(StaleSessionError):
            await service.append_event(session, call)
            return
        stored = await read(service)
        if stored.events[-1].get_function_calls():
            await service.wait_for(**KEY, revision=len(stored.events) + 1)


async def call_functions(service: MongoSessionService, name: str) -> list[str]:
    """A writer's turns, of a call and a response each; the log as it ends up with it.

    Every other turn is of a session that was just read, as a webhook has it.
    """
    session = await read(service)
    for turn in range(TURNS):
        if turn % 2:
            session = await read(service)
        called_by_me = f"{name}.{turn}"
        call = called(called_by_me, turn=called_by_me)
        call.actions.state_delta = {name: turn}
        await append(service, session, call)
        await service.append_event(session, responded(called_by_me, turn=called_by_me))
    return [event.id for event in session.events]


async def write(uri: str, database: str, process: int) -> list[list[str]]:
    async with MongoSessionService(
        uri, database=database, on_conflict="rebase"
    ) as service:
        names = [f"{process}.{number}" for number in range(WRITERS)]
        return await asyncio.gather(*(call_functions(service, name) for name in names))


def work(uri: str, database: str, process: int) -> list[list[str]]:
    """Write, in a process of its own."""
    return asyncio.run(write(uri, database, process))


async def test_ten_writers_in_two_processes(
    service: MongoSessionService, mongodb_uri: str, database: str
) -> None:
    """All is appended, once; calls and responses stay together; all see one order."""
    await service.create_session(**KEY)
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(2, FORKS) as processes:
        logs = await asyncio.gather(
            *(
                loop.run_in_executor(processes, work, mongodb_uri, database, process)
                for process in range(2)
            )
        )

    stored = await read(service)
    ids = [event.id for event in stored.events]
    assert len(set(ids)) == len(ids) == 2 * WRITERS * TURNS * 2
    for log in (log for of_process in logs for log in of_process):
        assert log == ids[: len(log)]
    for call, response in zip(stored.events[::2], stored.events[1::2], strict=True):
        (asked,), (given,) = (
            call.get_function_calls(),
            response.get_function_responses(),
        )
        assert asked.id == given.id
    assert stored.state == {
        f"{process}.{number}": TURNS - 1
        for process in range(2)
        for number in range(WRITERS)
    }
