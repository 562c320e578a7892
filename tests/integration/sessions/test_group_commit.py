"""Appends that are committed together stand and fall each on its own."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient
from support.failpoints import failing, held, open_transactions

from mongo_session_service import (
    DocumentTooLargeError,
    InvalidInputError,
    MongoSessionService,
    UnknownOutcomeError,
)
from mongo_session_service.testing import Limits

APP, USER = "app", "user"


def new_event(number: int = 0, **delta: Any) -> Event:
    delta = delta or {"n": number, f"app:{number}": number, f"user:{number}": number}
    return Event(author=str(number), actions=EventActions(state_delta=delta))


async def create(service: MongoSessionService, count: int) -> list[Session]:
    return [
        await service.create_session(app_name=APP, user_id=USER, session_id=str(number))
        for number in range(count)
    ]


async def at_once(
    service: MongoSessionService, appends: list[tuple[Session, Event]]
) -> list[Event | BaseException]:
    return await asyncio.gather(
        *(service.append_event(session, event) for session, event in appends),
        return_exceptions=True,
    )


async def read(service: MongoSessionService, session: Session) -> Session:
    found = await service.get_session(app_name=APP, user_id=USER, session_id=session.id)
    assert found is not None
    return found


async def test_a_refused_write_has_a_short_traceback(
    service: MongoSessionService,
) -> None:
    """It shows the caller's mistake, and nothing of the batch that was refused."""
    (session,) = await create(service, 1)
    stale = session.model_copy(deep=True)
    await service.append_event(session, new_event())

    with pytest.raises(AlreadyExistsError) as taken:
        await create(service, 1)
    with pytest.raises(StaleSessionError) as late:
        await service.append_event(stale, new_event())

    for error in (taken.value, late.value):
        shown = "".join(traceback.format_exception(error))
        assert shown.count("Traceback (most recent call last)") == 1


async def test_appends_at_once_share_transactions(
    service: MongoSessionService, admin: MongoClient
) -> None:
    """Many appends at once take a few commits, and lose nothing of shared state."""
    sessions = await create(service, 40)
    before = admin.admin.command("serverStatus")["transactions"]["totalCommitted"]

    await at_once(service, [(each, new_event(n)) for n, each in enumerate(sessions)])

    after = admin.admin.command("serverStatus")["transactions"]["totalCommitted"]
    assert after - before <= 3
    shared = {f"app:{n}": n for n in range(40)} | {f"user:{n}": n for n in range(40)}
    for number, session in enumerate(sessions):
        stored = await read(service, session)
        assert stored.state == {"n": number} | shared
        assert stored.events == session.events


@pytest.mark.parametrize("delta", [{"k": 1}, {"app:k": 1}, {"user:k": 1}])
async def test_unrelated_appends_are_committed_during_a_slow_commit(
    victim: MongoSessionService, admin: MongoClient, delta: dict[str, int]
) -> None:
    """Only appends to the same app or user state are held up."""
    first, second = await create(victim, 2)
    blocked = {"blockConnection": True, "blockTimeMS": 1000}

    with failing(admin, "commitTransaction", times=1, **blocked) as wait_until_hit:
        slow = asyncio.create_task(victim.append_event(first, new_event(**delta)))
        await asyncio.to_thread(wait_until_hit)
        await victim.append_event(second, new_event(**delta))
        was_held_up = slow.done()
    await slow

    assert was_held_up == (delta != {"k": 1})
    for session in (first, second):
        assert (await read(victim, session)).events == session.events


async def test_one_bad_append_fails_alone(service: MongoSessionService) -> None:
    """Of a batch, whoever is stale, missing, taken or too large fails, and no other."""
    sessions = await create(service, 12)
    stale, deleted, taken, full, unusable = sessions[1], *sessions[3:7]
    await service.append_event(await read(service, stale), new_event(k=1))
    await service.delete_session(app_name=APP, user_id=USER, session_id=deleted.id)
    await service.append_event(taken, Event(id="taken", author="x"))
    await service.append_event(full, new_event(a="x" * 9_000_000))
    appends = [(each, new_event(k="ok")) for each in sessions]
    appends[4] = taken, Event(id="taken", author="someone else")
    appends[5] = full, new_event(b="x" * 9_000_000)
    appends[6] = unusable, new_event(k=b"\xff")
    before = [session.model_copy(deep=True) for session in sessions]

    results = await at_once(service, appends)

    assert [type(each) for each in results] == [
        Event,
        StaleSessionError,
        Event,
        SessionNotFoundError,
        AlreadyExistsError,
        DocumentTooLargeError,
        InvalidInputError,
        *[Event] * 5,
    ]
    for session, old, result in zip(sessions, before, results, strict=True):
        if isinstance(result, Event):
            assert await read(service, session) == session != old
        else:
            assert session == old


async def test_appends_of_one_session_after_a_bad_one_go_on(
    service: MongoSessionService,
) -> None:
    """A refused append amid a session's own batch does not stop the rest."""
    (session,) = await create(service, 1)
    await service.append_event(session, Event(id="taken", author="0"))
    events = [Event(author=str(number)) for number in range(1, 5)]
    events[2] = Event(id="taken", author="3")

    results = await at_once(service, [(session, event) for event in events])

    assert isinstance(results[2], AlreadyExistsError)
    assert [event.author for event in session.events] == ["0", "1", "2", "4"]
    assert await read(service, session) == session


async def test_a_lost_server_fails_all_appends_of_a_batch(
    victim: MongoSessionService, admin: MongoClient
) -> None:
    """When the outcome is unknown each gets the error, and each can be tried again."""
    sessions = await create(victim, 6)
    appends = [(each, new_event(n)) for n, each in enumerate(sessions)]
    unknown = {"errorCode": 50, "errorLabels": ["UnknownTransactionCommitResult"]}

    with failing(admin, "commitTransaction", **unknown):
        results = await at_once(victim, appends)

    assert {type(each) for each in results} == {UnknownOutcomeError}
    assert len({id(each) for each in results}) == len(results)
    assert all(isinstance(each, Event) for each in await at_once(victim, appends))
    for session in sessions:
        stored = await read(victim, session)
        assert [event.id for event in stored.events] == [session.events[0].id]
    assert open_transactions(admin) == 0


async def test_conflicting_batches_of_two_services_both_finish(
    mongodb_uri: str, database: str
) -> None:
    """Writers in several services of one app's state lose nothing and never starve."""
    services = [MongoSessionService(mongodb_uri, database=database) for _ in range(3)]
    everyone = []
    for number, service in enumerate(services):
        for each in range(8):
            session = await service.create_session(app_name=APP, user_id=USER)
            everyone.append((service, session, f"app:{number}-{each}"))

    async def write(service: MongoSessionService, session: Session, key: str) -> None:
        for number in range(5):
            await service.append_event(session, new_event(**{key: number}))

    await asyncio.gather(*(write(*each) for each in everyone))

    service, session, _ = everyone[0]
    stored = await service.get_session(
        app_name=APP, user_id=USER, session_id=session.id
    )
    assert stored is not None
    assert stored.state == {key: 4 for _, _, key in everyone}
    for each in services:
        await each.close()


@pytest.mark.parametrize("cancelled", [0, 1, 2])
async def test_a_cancelled_append_harms_no_other_of_its_batch(
    victim: MongoSessionService, admin: MongoClient, cancelled: int
) -> None:
    """The batch is stored whole."""
    sessions = await create(victim, 3)

    with held(admin, "commitTransaction") as wait_until_held:
        tasks = [
            asyncio.create_task(victim.append_event(each, new_event(k=1)))
            for each in sessions
        ]
        await asyncio.to_thread(wait_until_held)
        tasks[cancelled].cancel()
    await asyncio.wait(tasks)

    assert [task.cancelled() for task in tasks] == [n == cancelled for n in range(3)]
    for session in sessions:
        assert len(session.events) == 1
        assert await read(victim, session) == session


@pytest.mark.parametrize("limits", [Limits(queued_writes=3), Limits(queued_bytes=1)])
async def test_more_callers_than_there_is_room_all_get_their_turn(
    mongodb_uri: str, database: str, limits: Limits
) -> None:
    """With a full queue callers wait for room, and none is forgotten."""
    async with MongoSessionService(
        mongodb_uri, database=database, _limits=limits
    ) as service:
        (session,) = await create(service, 1)

        await at_once(service, [(session, new_event(n)) for n in range(20)])

        stored = await read(service, session)
    assert [event.author for event in stored.events] == list(map(str, range(20)))


async def test_a_batch_that_is_cancelled_before_it_began_is_begun_anew(
    service: MongoSessionService,
) -> None:
    """Who ends all tasks of a loop, and appends once more, is not kept waiting."""
    (session,) = await create(service, 1)
    appending = asyncio.create_task(service.append_event(session, new_event()))
    starting: list[asyncio.Task[Any]] = []
    while not starting:
        await asyncio.sleep(0)
        starting = [
            each for each in asyncio.all_tasks() if "Writer._write_next" in repr(each)
        ]

    starting[0].cancel()

    async with asyncio.timeout(60):
        await appending
    assert starting[0].cancelled()
    assert await read(service, session) == session


class TwoPartsError(Exception):
    """An error that cannot be copied."""

    def __init__(self, one: str, other: str) -> None:
        super().__init__(one + other)


class Strange(MongoSessionService):
    """A service that fails to show the event of one session."""

    def _update_session_state(self, session: Session, event: Event) -> None:
        if session.id == "1":
            raise TwoPartsError("in ", "two parts")
        super()._update_session_state(session, event)


async def test_an_error_of_application_code_is_its_callers_alone(
    mongodb_uri: str, database: str
) -> None:
    """Other appends of the batch are stored."""
    async with Strange(mongodb_uri, database=database) as service:
        sessions = await create(service, 3)
        each = [(session, new_event()) for session in sessions]
        first, failed, last = await at_once(service, each)

        assert isinstance(failed, TwoPartsError)
        assert (first, last) == (sessions[0].events[-1], sessions[2].events[-1])
        assert [len((await read(service, it)).events) for it in sessions] == [1, 1, 1]
