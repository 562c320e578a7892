"""Handlers that fail, are repeated, and are given up."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Collection
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from support.consumers import PATIENCE, append, begun, create, run
from support.failpoints import failing

from mongo_session_service import (
    Change,
    Consumer,
    DeadLetter,
    MongoSessionService,
    StorageError,
)

pytestmark = pytest.mark.limits(handler_retry_seconds=0.0, stream_await_seconds=0.05)


class Handler:
    """Keeps what it was called with; fails on some; closes its consumer at the end."""

    def __init__(
        self, consumer: Consumer, last: int, fails_on: Collection[int] = ()
    ) -> None:
        self.calls: list[int | None] = []
        self._consumer = consumer
        self._last = last
        self._fails_on = fails_on

    async def handle(self, change: Change) -> None:
        """Do what a consumer's handler does."""
        self.calls.append(change.revision)
        if change.revision == self._last:
            await self._consumer.close()
        if change.revision in self._fails_on:
            raise ValueError(f"cannot do {change.revision}")


async def test_a_change_that_fails_every_attempt_becomes_a_dead_letter(
    service: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """After max_attempts a change is kept with its error, and the next one handled."""
    session = await create(service)
    await append(service, session, 3)
    consumer = service.consumer("c")
    handler = Handler(consumer, last=3, fails_on={2})
    with caplog.at_level(logging.WARNING):
        await run(consumer, handler.handle, max_attempts=4)

    assert handler.calls == [1, 2, 2, 2, 2, 3]
    [letter] = [each async for each in consumer.dead_letters()]
    assert letter.change.event == session.events[1]
    assert letter.error == "ValueError"
    assert letter.attempts == 4
    assert "cannot do" not in caplog.text
    key = f"{session.app_name}/{session.user_id}/{session.id}"
    assert f"The change 'appended' of '{key}', revision 2 is a dead" in caplog.text
    assert (await service.consumers())[0].dead_letters == 1


async def test_dead_letters_can_be_tried_again(service: MongoSessionService) -> None:
    """Those that are handled now are gone; the others stay, with their new error."""
    await append(service, await create(service), 3)
    consumer = service.consumer("c")
    await run(
        consumer, Handler(consumer, last=3, fails_on={1, 2, 3}).handle, max_attempts=1
    )
    again = Handler(consumer, last=0, fails_on={2})

    assert await consumer.replay_dead_letters(again.handle) == 2

    assert sorted(again.calls) == [1, 2, 3]
    [letter] = [each async for each in consumer.dead_letters()]
    assert (letter.change.revision, letter.attempts) == (2, 2)


async def test_every_kind_of_change_can_become_a_dead_letter(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """A dead letter holds no content, and gives back the change as it is stored now."""
    consumer = service.consumer("c", updates=True)
    seen: list[Change] = []
    steps = {kind: asyncio.Event() for kind in ("updated", "redacted", "deleted")}

    def handler(change: Change) -> None:
        seen.append(change)
        if change.kind in steps:
            steps[change.kind].set()
        raise ValueError

    async def buried() -> list[DeadLetter]:
        return [each async for each in consumer.dead_letters()]

    async with asyncio.timeout(PATIENCE):
        running = asyncio.create_task(consumer.run(handler, max_attempts=1))
        await begun(service)
        state = {"app:x$.y": {"secret": 2**70}, "user:z": "secret"}
        session = await service.create_session(
            app_name="app", user_id="user", state=state
        )
        await append(service, session)
        key = {"app_name": "app", "user_id": "user", "session_id": session.id}
        await service.update_session(**key, title="secret", labels={"a": "secret"})
        await steps["updated"].wait()
        # No signal comes from the server.
        while len(await buried()) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        stored = [*admin[database].dead_letters.find()]
        letters = [each.change for each in await buried()]
        await service.redact_events(**key, event_ids=[session.events[0].id])
        await steps["redacted"].wait()
        redacted = next(it for it in await buried() if it.id["kind"] == "appended")
        await service.delete_session(**key)
        await steps["deleted"].wait()
        await consumer.end()
        await running

    assert [each.kind for each in seen] == [
        "created",
        "state",
        "state",
        "appended",
        "updated",
        "redacted",
        "deleted",
    ]
    assert "secret" not in str(stored)
    assert (letters[0].kind, letters[0].revision) == ("created", 1)
    assert letters[0].state_delta["n"] == 0
    assert letters[1:] == seen[1:5]
    assert redacted.change.event == seen[5].event
    kinds = ("created", "appended", "updated", "redacted")
    gone = [it for it in await buried() if it.id["kind"] in kinds]
    assert len(gone) == len(kinds)
    for letter in gone:
        with pytest.raises(StorageError, match="is no longer stored"):
            _ = letter.change


async def test_a_dead_letter_of_a_trimmed_event_is_removed_by_a_replay(
    service: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """It is removed with a warning, and not handled."""
    await append(service, await create(service), 2)
    consumer = service.consumer("c")
    await run(consumer, Handler(consumer, 2, fails_on={1, 2}).handle, max_attempts=1)
    await service.trim_session(
        app_name="app", user_id="user", session_id="s", keep_last=1
    )
    again = Handler(consumer, last=0)

    assert await consumer.replay_dead_letters(again.handle) == 1

    assert again.calls == [2]
    assert [each async for each in consumer.dead_letters()] == []
    assert "revision 1 is no longer stored" in caplog.text


class McpLeak:
    """Cancels the task that it was entered in, as a cancel scope that leaks does."""

    def __init__(self) -> None:
        self._task = asyncio.current_task()

    async def leak(self) -> None:
        """Wait to be cancelled by oneself."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.sleep(PATIENCE)


async def _raise_cancelled() -> None:
    raise asyncio.CancelledError


async def _exit() -> None:
    raise SystemExit(7)


FAILURES = {
    "cancelled": (_raise_cancelled, "CancelledError"),
    "leaking": (lambda: McpLeak().leak(), "CancelledError"),
    "exit": (_exit, "SystemExit"),
}
MODES: dict[str, dict[str, Any]] = {
    "in order": {},
    "in a transaction": {"transactional": True},
    "at once": {"concurrency": 2},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("failure", FAILURES)
async def test_a_cancellation_that_nobody_asked_for_is_a_failure(
    service: MongoSessionService,
    caplog: pytest.LogCaptureFixture,
    failure: str,
    mode: str,
) -> None:
    """So is an exit: the change is tried again and kept, and the next one handled.

    How many of each there were is logged at the end.
    """
    await append(service, await create(service), 3)
    fail, name = FAILURES[failure]
    calls: list[int | None] = []

    async def handler(change: Change, *_: Any) -> None:
        calls.append(change.revision)
        if change.revision == 2:
            await fail()

    consumer = service.consumer("c")
    options = MODES[mode] | {"max_attempts": 2, "until_caught_up": True}
    caplog.set_level(logging.INFO)
    async with asyncio.timeout(PATIENCE):
        assert await consumer.run(handler, **options) == 1
    told = "Consumer 'c' has ended: 2 changes handled, 1 dead letter kept."
    assert caplog.messages[-1] == told
    in_group = mode == "in a transaction"
    assert [it for it in calls if it == 2] == [2] * (2 + in_group)
    assert calls[-1] == 3
    [letter] = [each async for each in consumer.dead_letters()]
    assert (letter.error, letter.attempts) == (name, 2)

    transactional = {"transactional": True} if in_group else {}
    assert await consumer.replay_dead_letters(handler, **transactional) == 0
    [letter] = [each async for each in consumer.dead_letters()]
    assert (letter.error, letter.attempts) == (name, 3)


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_run_ends_whatever_its_handler_makes_of_it(
    service: MongoSessionService, mode: str
) -> None:
    """A handler that raises another error is not called again, and nothing is kept."""
    await append(service, await create(service))
    called = asyncio.Event()

    async def handler(*_: Any) -> None:
        called.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            raise ValueError from None

    consumer = service.consumer("c")
    running = asyncio.create_task(consumer.run(handler, **MODES[mode]))
    await called.wait()
    running.cancel()
    await asyncio.wait([running], timeout=PATIENCE)
    assert running.cancelled()
    assert [each async for each in consumer.dead_letters()] == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_task_that_was_cancelled_before_can_still_run_a_consumer(
    service: MongoSessionService, mode: str
) -> None:
    """As one that drains it when it is told to end: what fails is a dead letter."""
    await append(service, await create(service))
    consumer, waiting = service.consumer("c"), asyncio.Event()

    async def drain() -> int:
        try:
            waiting.set()
            await asyncio.sleep(PATIENCE)
        finally:
            options = MODES[mode] | {"max_attempts": 1, "until_caught_up": True}
            kept = await consumer.run(_fail, **options)
        return kept

    async def _fail(*_: Any) -> None:
        raise ValueError

    draining = asyncio.create_task(drain())
    await waiting.wait()
    draining.cancel()
    await asyncio.wait([draining], timeout=PATIENCE)
    [letter] = [each async for each in consumer.dead_letters()]
    assert letter.error == "ValueError"


async def test_each_failed_attempt_is_logged_with_its_pause(
    service: MongoSessionService, caplog: pytest.LogCaptureFixture
) -> None:
    """Thirteen attempts are made; twelve of them are followed by a pause."""
    await append(service, await create(service))

    def fail(change: Change) -> None:
        raise ValueError(change.user_id)

    with caplog.at_level(logging.WARNING):
        assert await service.consumer("c").run(fail, until_caught_up=True) == 1
    texts = [each.getMessage() for each in caplog.records]
    assert len(texts) == 13
    for number, text in enumerate(texts[:-1], 1):
        assert f"failed with ValueError, in attempt {number} of 13, on The" in text
        assert text.endswith(" seconds.")
    # The same pauses from a tenth of a second on take a minute at least.
    doubled = [min(0.1 * 2**number, 30) for number in range(12)]
    assert 60 <= sum(doubled) / 2 <= sum(doubled) <= 150


async def test_a_write_and_the_checkpoint_are_one_transaction(
    service: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """What a handler writes with its txn is there exactly once, whatever fails."""
    await append(service, await create(service), 20)
    bills = admin[database].bills
    calls = 0

    async def handler(change: Change, txn: Any) -> None:
        nonlocal calls
        calls += 1
        bill = {"_id": calls, "revision": change.revision}
        await txn.client[database].bills.insert_one(bill, session=txn)
        if calls % 3 == 0:
            raise ValueError
        if calls % 7 == 0:
            running.cancel()
            await asyncio.sleep(0)
        if change.revision == 20:
            await consumer.close()

    while True:
        consumer = service.consumer("c")
        running = asyncio.create_task(consumer.run(handler, transactional=True))
        await asyncio.wait([running], timeout=PATIENCE)
        if not running.cancelled():
            running.result()
            break

    assert calls > 20
    assert [each["revision"] for each in bills.find().sort("_id")] == list(range(1, 21))


async def test_a_commit_of_unknown_outcome_is_not_repeated(
    victim: MongoSessionService, admin: MongoClient, database: str
) -> None:
    """Connections lost at commit neither lose a handler's write nor double it."""
    await append(victim, await create(victim), 6)
    bills = admin[database].bills

    async def handler(change: Change, txn: Any) -> None:
        bill = {"revision": change.revision}
        await txn.client[database].bills.insert_one(bill, session=txn)
        if change.revision == 6:
            await consumer.close()

    consumer = victim.consumer("c")
    with failing(admin, "commitTransaction", times=3, closeConnection=True):
        await run(consumer, handler, transactional=True)

    assert [each["revision"] for each in bills.find()] == list(range(1, 7))


async def test_drivers_errors_of_a_handler_are_its_own(
    service: MongoSessionService,
) -> None:
    """A handler that fails with a driver's error is repeated and given up as others."""
    await append(service, await create(service), 2)
    consumer, calls = service.consumer("c"), itertools.count(1)

    async def handler(_: Change) -> None:
        if next(calls) == 4:
            await consumer.close()
        raise PyMongoError

    await run(consumer, handler, max_attempts=2)

    assert len([each async for each in consumer.dead_letters()]) == 2
