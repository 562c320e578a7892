#!/usr/bin/env python3
"""Simulation of how users spread over shards, by range and by hash of the shard key.

Usage: scripts/shard_spread.py [--users N] [--apps N] [--shards N] [--seed N]

Prints the rows of docs/operations/sharding.md. Chunks split when they outgrow their
size, and the balancer moves one at a time from the fullest to the emptiest shard, as
MongoDB's does since 6.0: by bytes, until no two shards differ by three chunks.
"""

from __future__ import annotations

import argparse
import hashlib
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import Final, NamedTuple

CHUNK: Final = 128 * 2**20  # bytes
EVENT: Final = 1_000  # bytes, with its share of the indexes
HOT: Final = "app-00"
OF_HOT: Final = 0.5  # of all users


class Stored(NamedTuple):
    """What a user takes."""

    app: str
    user: str
    size: int


@dataclass(slots=True)
class Chunk:
    """A range of the shard key, and the bytes of each app in it."""

    apps: Counter[str] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.apps.total()


def users(count: int, apps: int, chance: random.Random) -> Iterable[Stored]:
    """Half of them are of one app, the rest by Zipf's law; a few chat very much."""
    bounds = [*accumulate(1 / rank for rank in range(1, apps))]
    for _ in range(count):
        rank = 1 + bisect_right(bounds, chance.random() * bounds[-1])
        app = HOT if chance.random() < OF_HOT else f"app-{min(rank, apps - 1):02}"
        events = min(round(chance.paretovariate(1.1) * 20), 50_000)
        yield Stored(app, f"{chance.getrandbits(48):012x}", events * EVENT)


def by_range(each: Stored) -> str:
    """Where a user is in the order of the key."""
    return f"{each.app}/{each.user}"


def by_hash(each: Stored) -> str:
    """Where a hash puts the user."""
    return hashlib.sha256(by_range(each).encode()).hexdigest()


def split(stored: Iterable[Stored], order: Callable[[Stored], str]) -> list[Chunk]:
    """Chunks that hold up to their size; no user is on two of them."""
    chunks, size = [Chunk()], 0
    for each in sorted(stored, key=order):
        if size and size + each.size > CHUNK:
            chunks.append(Chunk())
            size = 0
        chunks[-1].apps[each.app] += each.size
        size += each.size
    return chunks


def balance(chunks: list[Chunk], shards: int) -> tuple[list[Counter[str]], int]:
    """The bytes of each app on each shard; the first had all. And the moves."""
    waiting: list[list[Chunk]] = [[*chunks], *([] for _ in range(shards - 1))]
    sizes, moves = [sum(it.size for it in each) for each in waiting], 0
    while max(sizes) - min(sizes) >= 3 * CHUNK:
        full, empty = sizes.index(max(sizes)), sizes.index(min(sizes))
        chunk = waiting[full].pop(0)
        waiting[empty].append(chunk)
        sizes[full] -= chunk.size
        sizes[empty] += chunk.size
        moves += 1
    return [sum((it.apps for it in each), Counter()) for each in waiting], moves


def row(name: str, chunks: list[Chunk], shards: int) -> str:
    """A line of the table."""
    placed, moves = balance(chunks, shards)
    sizes = [each.total() for each in placed]
    hot = [each[HOT] for each in placed]
    apps = {app for each in placed for app in each}
    spread = [sum(app in each for each in placed) for app in sorted(apps)]
    cells = [
        name,
        f"{len(chunks):,}",
        f"{moves:,}",
        f"{max(sizes) * shards / sum(sizes):.2f}",
        f"{min(sizes) * shards / sum(sizes):.2f}",
        f"{max(hot) * shards / sum(hot):.2f}",
        f"{median(spread):.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--apps", type=int, default=50)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)  # noqa: S311  the same at each run
    stored = [*users(asked.users, asked.apps, chance)]
    print(row("range", split(stored, by_range), asked.shards))
    print(row("hash", split(stored, by_hash), asked.shards))


if __name__ == "__main__":
    main()
