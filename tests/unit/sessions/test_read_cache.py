"""The read cache keeps its limit, and drops what is gone, idle or old."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions import reads
from mongo_session_service.sessions.reads import CachedLog, ReadCache

LOG = CachedLog(
    create_time=1.0,
    first=1,
    newest=b"x",
    revision=64,
    blocks=(b"x" * 9000,),
    redactions=0,
    read_at=float("inf"),
)
ADA, BOB = SessionKey("app", "ada", "1"), SessionKey("app", "bob", "1")
OTHER = SessionKey("other", "ada", "1")


def keep(cache: ReadCache, *keys: SessionKey) -> None:
    for key in keys:
        cache.put(key, LOG, cache.drops(key), asyncio.get_running_loop())


def kept(cache: ReadCache) -> set[SessionKey]:
    return {key for key in (ADA, BOB, OTHER) if cache.get(key)}


async def test_the_log_read_longest_ago_is_dropped_first() -> None:
    """The cache never takes more than its limit."""
    cache = ReadCache(2 * LOG.size)
    keep(cache, ADA, BOB)
    cache.get(ADA)

    keep(cache, OTHER)

    assert kept(cache) == {ADA, OTHER}
    assert cache.size == 2 * LOG.size


@pytest.mark.parametrize("gone", [ADA, ADA[:2], ADA[:1]])
async def test_a_log_deleted_during_its_read_is_not_kept(gone: tuple[str, ...]) -> None:
    """It may be of the session that is gone."""
    cache = ReadCache(10 * LOG.size)
    keep(cache, ADA)
    drops = cache.drops(ADA)
    cache.drop(*gone)

    cache.put(ADA, LOG, drops, asyncio.get_running_loop())

    assert kept(cache) == set()


async def test_an_idle_log_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was read meanwhile stays."""
    now = 1000.0
    monkeypatch.setattr(reads, "monotonic", lambda: now)
    cache = ReadCache(10 * LOG.size)
    keep(cache, ADA, BOB)
    now += reads.IDLE - 1
    cache.get(ADA)
    now += 2

    cache.drop_idle()

    assert kept(cache) == {ADA}
    assert cache.size == LOG.size


async def test_a_log_is_read_anew_after_some_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often it is read meanwhile, since it may have been edited."""
    now = 1000.0
    monkeypatch.setattr(reads, "monotonic", lambda: now)
    cache = ReadCache(LOG.size)
    log, loop = replace(LOG, read_at=now), asyncio.get_running_loop()
    cache.put(ADA, log, cache.drops(ADA), loop)

    for _ in range(4):
        now += reads.LIFETIME / 4
        assert cache.get(ADA)
    now += 1

    assert cache.get(ADA) is None
    assert cache.size == 0
