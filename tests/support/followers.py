"""A session that is followed in every way there is, and whether all were told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeAlias

from google.adk.sessions import Session

from mongo_session_service import HistoryLostError, MongoSessionService
from support.subscriptions import (
    APP,
    ID,
    SESSION,
    USER,
    Follower,
    new_event,
    stored_state,
)

Followed: TypeAlias = tuple[Session, list[Follower]]


@asynccontextmanager
async def followed(
    service: MongoSessionService, watched: MongoSessionService
) -> AsyncIterator[Followed]:
    """A session, written by one service, and whoever follows it through another."""
    session = await service.create_session(**SESSION)
    scopes = [(APP, USER, ID), (APP, USER), (APP,), ()]
    async with AsyncExitStack() as stack:
        yield (
            session,
            [
                await stack.enter_async_context(Follower(watched.watch(*scope)))
                for scope in scopes
            ],
        )


async def all_received(
    service: MongoSessionService,
    session: Session,
    followers: list[Follower],
    *,
    is_lost: bool,
) -> None:
    """Write some more, and check what everyone was told or how they ended."""
    by_session, *broad = followers
    for number in range(5):
        await service.append_event(session, new_event(app_n=number, n=number))
    last = session_revision(await service.get_session(**SESSION))
    await by_session.reached(last)
    assert by_session.revisions == {"app/user/s": list(range(1, last + 1))}
    assert by_session.state == await stored_state(service)
    for follower in broad:
        if is_lost:
            assert isinstance(await follower.ended(), HistoryLostError)
        else:
            await follower.until(lambda each=follower: len(each.told) >= last)
            assert follower.revisions == {"app/user/s": list(range(1, last + 1))}
            assert follower.kinds == ["appended"] * last


def session_revision(session: Session | None) -> int:
    assert session is not None
    return len(session.events)
