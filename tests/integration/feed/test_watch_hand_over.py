"""Subscriptions opened at any moment, among writers that never pause."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions import Session
from pymongo import MongoClient
from support.subscriptions import (
    APP,
    ID,
    IDS,
    PATIENCE,
    SESSION,
    USER,
    Follower,
    change_streams,
    new_event,
    stored_state,
    until,
)

from mongo_session_service import MongoSessionService


async def create(service: MongoSessionService, count: int) -> list[Session]:
    return [
        await service.create_session(**IDS, session_id=str(number))
        for number in range(count)
    ]


@pytest.mark.parametrize(
    ("scope", "before"),
    [("app_k", 1), ("app_k", 5), ("user_k", 1), ("user_k", 5)],
    ids=["app", "app-as-before", "user", "user-as-before"],
)
async def test_sessions_that_set_the_same_key_in_one_transaction(
    service: MongoSessionService, scope: str, before: int
) -> None:
    """Each ends with the value stored, even if that is what it was before them all."""
    sessions = await create(service, 6)
    await service.append_event(sessions[5], new_event(**{scope: before}))
    followers = [Follower(service.watch(APP, USER, each.id)) for each in sessions]
    for follower in followers:
        await follower.__aenter__()

    # The first goes alone, and the others gather behind it.
    await asyncio.gather(
        *(
            service.append_event(session, new_event(**{scope: number}))
            for number, session in enumerate([*sessions[:5], sessions[0]])
        )
    )
    await asyncio.gather(
        *(service.append_event(session, new_event(done=1)) for session in sessions)
    )

    for session, follower in zip(sessions, followers, strict=True):
        await follower.until(lambda each=follower: each.state.get("done"))
        assert follower.state == await stored_state(service, session.id)
        await follower.__aexit__(None, None, None)


async def test_a_new_session_sets_the_same_key_in_one_transaction(
    service: MongoSessionService,
) -> None:
    """What a session sets at its creation reaches those committed with it."""
    sessions = await create(service, 2)
    await service.append_event(sessions[0], new_event(app_k=7))
    async with Follower(service.watch(APP, USER, sessions[1].id)) as follower:
        alone = asyncio.create_task(service.append_event(sessions[0], new_event()))
        await asyncio.sleep(0)  # it is being stored, and the others wait for the next
        await asyncio.gather(
            alone,
            service.append_event(sessions[1], new_event(app_k=1)),
            service.create_session(app_name=APP, user_id="new", state={"app:k": 7}),
        )
        await service.append_event(sessions[1], new_event(done=1))
        await follower.until(lambda: follower.state.get("done"))

        assert follower.state == await stored_state(service, sessions[1].id)


class RandomWriters:
    """Eight sessions, written at once, and whoever begins to follow them meanwhile."""

    def __init__(self, service: MongoSessionService, sessions: list[Session]) -> None:
        self.service = service
        self.sessions = sessions
        self.followers: list[tuple[str, Follower]] = []
        self._rng = random.Random(5)  # noqa: S311  not for secrets

    async def run(self) -> None:
        """Write 61 events to each session."""
        await asyncio.gather(
            *map(self._write, self.sessions), self._open_some(), self._open_some()
        )
        for session in self.sessions:
            event = new_event(app_done=1, last=session.id)
            await self.service.append_event(session, event)

    async def _write(self, session: Session) -> None:
        rng = self._rng
        for number in range(60):
            delta: dict[str, Any] = {f"k{rng.randrange(5)}": number}
            for scope in ("app", "user"):
                if rng.random() < 0.5:
                    delta[f"{scope}_k{rng.randrange(3)}"] = rng.randrange(3)
            await self.service.append_event(session, new_event(**delta))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() / 100)

    async def _open_some(self) -> None:
        rng = self._rng
        for _ in range(40):
            chosen = rng.choice(self.sessions).id
            after = rng.choice([None, 0])
            follower = Follower(
                self.service.watch(APP, USER, chosen, after_revision=after)
            )
            await follower.__aenter__()
            self.followers.append((chosen, follower))
            await asyncio.sleep(rng.random() / 50)


async def test_opened_at_random_among_random_writers(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """Everyone sees each revision once, in order, and ends with the state stored."""
    writers = RandomWriters(service, await create(service, 8))
    broad = [Follower(service.watch(*scope)) for scope in ((), (APP,), (APP, USER))]
    for follower in broad:
        await follower.__aenter__()

    await writers.run()

    for session_id, follower in writers.followers:
        await follower.reached(61)
        want = await stored_state(service, session_id)
        await follower.until(lambda each=follower, want=want: each.state == want)
        first = follower.told[0]
        start = 1 + ((first.revision or 0) if first.kind == "snapshot" else 0)
        told = follower.revisions.get(f"app/user/{session_id}", [])
        assert told == list(range(start, 62))
    for follower in broad:
        await follower.until(lambda each=follower: len(each.told) >= 8 * 61)
        assert follower.revisions == {
            f"app/user/{session.id}": list(range(1, 62)) for session in writers.sessions
        }
        assert follower.kinds == ["appended"] * (8 * 61)
    await until(lambda: len(change_streams(admin, database)) == 1)
    for follower in [*broad, *(each for _, each in writers.followers)]:
        await follower.__aexit__(None, None, None)


async def test_a_session_may_be_deleted_and_created_at_any_moment(
    service: MongoSessionService,
) -> None:
    """A subscription delivers one life of a session: whole, and no other's events."""
    seen = [0] * 5
    done = asyncio.Event()

    async def live_and_die() -> None:
        for life in itertools.count():
            session = await service.create_session(**SESSION, state={"life": life})
            for number in range(1, 4):
                await service.append_event(session, new_event(n=[life, number]))
            await service.delete_session(**SESSION)
            if life >= 40 and min(seen) > 3:
                break
        done.set()

    async def follow(who: int) -> None:
        while not done.is_set():
            try:
                async with Follower(service.watch(APP, USER, ID)) as follower:
                    await follower.ended()
            except SessionNotFoundError:
                await asyncio.sleep(0)
                continue
            snapshot, *appended, deleted = follower.told
            assert snapshot.state is not None
            assert snapshot.revision is not None
            life = snapshot.state["life"]
            assert deleted.kind == "deleted"
            assert [change.state_delta["n"] for change in appended] == [
                [life, number] for number in range(snapshot.revision + 1, 4)
            ]
            seen[who] += 1

    # While somebody follows all, no stream has to be opened first.
    async with service.watch():
        await asyncio.gather(live_and_die(), *map(follow, range(5)))


async def test_cancelled_readers_lose_no_change(service: MongoSessionService) -> None:
    """However often some are cancelled, they and others receive everything."""
    rng = random.Random(7)  # noqa: S311  not for secrets
    session = await service.create_session(**SESSION)
    total = 150

    async def read(after: int | None) -> list[int]:
        told: list[int] = []
        async with service.watch(APP, USER, ID, after_revision=after) as changes:
            while changes.last_revision != total:
                pause = rng.choice([0, 0.0005, 0.002, 0.005])
                try:
                    if rng.random() < 0.5:
                        async with asyncio.timeout(pause):
                            change = await anext(changes)
                    else:
                        change = await asyncio.wait_for(anext(changes), pause)
                except TimeoutError:
                    continue
                assert change.revision is not None
                told.append(change.revision)
        return told

    async def write() -> None:
        for _ in range(total):
            await service.append_event(session, new_event())

    async with asyncio.timeout(PATIENCE), Follower(service.watch(APP)) as neighbour:
        _, *told = await asyncio.gather(
            write(), read(None), read(None), read(0), read(0)
        )

    for each in told[:2]:
        assert each == list(range(each[0], total + 1))
    assert told[2:] == [list(range(1, total + 1))] * 2
    assert neighbour.revisions == {"app/user/s": list(range(1, total + 1))}
