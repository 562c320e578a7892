"""Twenty writers, and whoever follows or consumes, through changes of primary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from google.adk.sessions import Session
from pymongo import MongoClient
from pymongo.read_concern import ReadConcern
from support.consumers import Told, told
from support.replica_set import FailingReplicaSet
from support.subscriptions import APP, IDS, USER, Follower, new_event, stored_state

from mongo_session_service import Change, MongoSessionService, StorageUnavailableError

WRITERS = 20
PAUSE = 0.25
"""Seconds between two events of a writer."""


class Writer:
    """Appends events to its session, each until it is stored."""

    def __init__(self, service: MongoSessionService, session: Session) -> None:
        self.service = service
        self.session = session
        self.stored = 0
        self.failures = 0
        self.progress = asyncio.Event()

    async def run(self, done: asyncio.Event) -> None:
        """Write until told that it is done."""
        while not done.is_set():
            await self.write()
            await asyncio.sleep(PAUSE)

    async def write(self) -> None:
        """Append one event, however often that takes."""
        number = self.stored + 1
        event = new_event(n=number, app_n=number, **{f"user_{self.session.id}": number})
        while True:
            try:
                await self.service.append_event(self.session, event)
            except StorageUnavailableError:
                self.failures += 1
                await asyncio.sleep(PAUSE)
            else:
                self.stored += 1
                self.progress.set()
                return


async def all_write(writers: list[Writer]) -> None:
    """Return when every writer has stored something from now on."""
    for writer in writers:
        writer.progress.clear()
    async with asyncio.timeout(60):
        for writer in writers:
            await writer.progress.wait()


class Billing:
    """Two consumers: one keeps what it handles here, one in its transaction."""

    def __init__(self, service: MongoSessionService) -> None:
        self.handled: list[Told] = []
        consumer = service.consumer("here")
        self._runs = [
            asyncio.create_task(consumer.run(self._handle)),
            asyncio.create_task(
                service.consumer("there").run(self._bill, transactional=True)
            ),
        ]

    def _handle(self, change: Change) -> None:
        self.handled += told([change])

    async def _bill(self, change: Change, txn: Any) -> None:
        for name, revision in told([change]):
            bill = {"name": name, "revision": revision}
            await txn.client["d"].bills.insert_one(bill, session=txn)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when it holds; fails if a consumer ends, or if that takes long."""
        async with asyncio.timeout(60):
            while not condition():
                # What a transaction has written is seen some time after its handler.
                done, _ = await asyncio.wait(
                    self._runs, timeout=0.1, return_when=asyncio.FIRST_COMPLETED
                )
                assert not done, [run.exception() for run in done]

    async def stop(self) -> None:
        for run in self._runs:
            run.cancel()
        await asyncio.wait(self._runs)


def in_order(changes: list[Told]) -> dict[str, list[int | None]]:
    """Which revisions of which session were told, in the order they were."""
    revisions: dict[str, list[int | None]] = {}
    for name, revision in changes:
        revisions.setdefault(name, []).append(revision)
    return revisions


@pytest.mark.xdist_group("heavy")
@pytest.mark.parametrize("faults", [2, pytest.param(5, marks=pytest.mark.release)])
async def test_failovers_lose_and_repeat_no_change(faults: int) -> None:
    """Through killed and deposed primaries each revision is received once, in order."""
    done = asyncio.Event()
    async with AsyncExitStack() as stack:
        replica_set = await stack.enter_async_context(FailingReplicaSet(members=3))
        uri = f"{replica_set.uri}&heartbeatFrequencyMS=500"
        writing, reading = [
            await stack.enter_async_context(MongoSessionService(uri, database="d"))
            for _ in range(2)
        ]
        sessions = [
            await writing.create_session(**IDS, session_id=str(number))
            for number in range(WRITERS)
        ]

        async def follow(
            service: MongoSessionService, *scope: str, after: int | None = None
        ) -> Follower:
            follower = Follower(service.watch(*scope, after_revision=after))
            return await stack.enter_async_context(follower)

        by_session = [
            (session.id, await follow(service, APP, USER, session.id))
            for session in sessions
            for service in (writing, reading)
        ]
        broad = [
            await follow(service, *scope)
            for scope in ((), (APP,), (APP, USER))
            for service in (writing, reading)
        ]
        billing = Billing(reading)
        stack.push_async_callback(billing.stop)
        bills = (
            stack.enter_context(MongoClient(uri))
            .get_database("d", read_concern=ReadConcern("majority"))
            .bills
        )
        writers = [Writer(writing, session) for session in sessions]
        tasks = [asyncio.create_task(writer.run(done)) for writer in writers]
        for number in range(faults):
            await all_write(writers)
            primary = await asyncio.to_thread(lambda: replica_set.primary)
            await asyncio.to_thread(replica_set.stop_member, primary, kill=True)
            # Opened while there is no primary, from the beginning of the log.
            late = sessions[number].id
            by_session.append((late, await follow(reading, APP, USER, late, after=0)))
            await all_write(writers)
            await asyncio.to_thread(replica_set.start_member, primary)
            await all_write(writers)
            await asyncio.to_thread(replica_set.step_down)
        await all_write(writers)
        done.set()
        await asyncio.gather(*tasks)
        for writer in writers:
            await writer.write()

        stored = {writer.session.id: writer.stored for writer in writers}
        states = {name: await stored_state(reading, name) for name in stored}
        for name, follower in by_session:
            await follower.reached(stored[name])
            want = states[name]
            await follower.until(lambda each=follower, want=want: each.state == want)
            assert follower.revisions == {
                f"{APP}/{USER}/{name}": list(range(1, stored[name] + 1))
            }
        total = sum(stored.values())
        for follower in broad:
            await follower.until(lambda each=follower: len(each.told) >= total)
            assert follower.kinds == ["appended"] * total
            assert follower.revisions == {
                f"{APP}/{USER}/{name}": list(range(1, count + 1))
                for name, count in stored.items()
            }
        expected = {name: list(range(1, count + 1)) for name, count in stored.items()}
        await billing.until(lambda: len(billing.handled) >= total)
        assert in_order(billing.handled) == expected
        await billing.until(lambda: bills.count_documents({}) >= total)
        billed = [(bill["name"], bill["revision"]) for bill in bills.find().sort("_id")]
        assert in_order(billed) == expected
        assert min(stored.values()) > 3 * faults, total
        for service in (reading, writing):
            stats = service.feed_stats()
            # A cursor lives on with its member, be that primary or not.
            assert stats.reconnects >= 1
            assert (stats.resyncs, stats.drops) == (0, 0)
