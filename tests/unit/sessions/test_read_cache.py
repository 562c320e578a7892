"""The read cache: within its limit, and of nothing that is gone or idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions import reads
from mongo_session_service.sessions.reads import CachedLog, ReadCache

LOG = CachedLog(
    create_time=1.0,
    first=1,
    last=b"x",
    revision=64,
    blocks=(b"x" * 9000,),
    redactions=0,
    read_at=float("inf"),
)
ADA, BOB = SessionKey("app", "ada", "1"), SessionKey("app", "bob", "1")
OTHER = SessionKey("other", "ada", "1")


def keep(cache: ReadCache, *keys: SessionKey) -> None:
    for key in keys:
        cache.put(key, LOG, cache.drops)


def kept(cache: ReadCache) -> set[SessionKey]:
    return {key for key in (ADA, BOB, OTHER) if cache.get(key)}


async def test_what_was_read_longest_ago_makes_room() -> None:
    """The cache never takes more than its limit."""
    cache = ReadCache(2 * LOG.size)
    keep(cache, ADA, BOB)
    cache.get(ADA)

    keep(cache, OTHER)

    assert kept(cache) == {ADA, OTHER}
    assert cache.size == 2 * LOG.size


async def test_a_log_that_replaces_another_takes_its_room() -> None:
    """Its size counts once."""
    cache = ReadCache(10 * LOG.size)
    keep(cache, ADA, ADA)

    assert cache.size == LOG.size


async def test_a_log_beyond_the_limit_is_not_kept() -> None:
    """It makes room of nothing."""
    cache = ReadCache(LOG.size)
    keep(cache, ADA)
    cache.put(BOB, replace(LOG, blocks=(b"x" * 10_000,)), cache.drops)

    assert kept(cache) == {ADA}


@pytest.mark.parametrize(
    ("dropped", "left"),
    [
        (("app", "ada", "1"), {BOB, OTHER}),
        (("app", "ada", None), {BOB, OTHER}),
        (("app", None, None), {OTHER}),
        (("app", "ada", "2"), {ADA, BOB, OTHER}),
    ],
)
async def test_what_is_gone_is_dropped(
    dropped: tuple[str, str | None, str | None], left: set[SessionKey]
) -> None:
    """A session, or all of a user or an app."""
    cache = ReadCache(10 * LOG.size)
    keep(cache, ADA, BOB, OTHER)

    cache.drop(*dropped)

    assert kept(cache) == left
    assert cache.size == len(left) * LOG.size


async def test_a_read_that_a_delete_has_overtaken_is_not_kept() -> None:
    """It may be of the session that is gone."""
    cache = ReadCache(10 * LOG.size)
    drops = cache.drops
    cache.drop(*ADA)

    cache.put(ADA, LOG, drops)

    assert kept(cache) == set()


async def test_what_is_idle_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read meanwhile stays."""
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
    cache.put(ADA, replace(LOG, read_at=now), cache.drops)

    for _ in range(4):
        now += reads.LIFETIME / 4
        assert cache.get(ADA)
    now += 1

    assert cache.get(ADA) is None
    assert cache.size == 0
