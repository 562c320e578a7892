"""A replica set of three, one of whose secondaries can be made to lag."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Self

from pymongo import MongoClient
from pymongo.uri_parser import parse_uri

from support.replica_set import FailingReplicaSet

PATIENCE = 60.0

HEARTBEATS = {"heartbeatIntervalMillis": 2000, "electionTimeoutMillis": 10_000}
"""MongoDB's own, which leave a member alone for a while."""


DEAFNESS = "stopReplProducer"


class Laggard:
    """A secondary that can be held back, and is read by whoever prefers its tag."""

    def __init__(self, uri: str, client: MongoClient[Any]) -> None:
        self._plain_uri = uri
        self._client = client

    @classmethod
    @contextlib.contextmanager
    def of(cls, three: FailingReplicaSet) -> Iterator[Self]:
        """The member of three that has a tag."""
        nodes = parse_uri(three.uri)["nodelist"]
        with MongoClient[Any](three.uri) as client:
            config = client.admin.command("replSetGetConfig")["config"]
        (tagged,) = (each["_id"] for each in config["members"] if each["tags"])
        host, port = nodes[tagged]
        with MongoClient[Any](host, port, directConnection=True) as client:
            yield cls(three.uri, client)

    def uri(self, mode: str = "secondary") -> str:
        """The URI of a client that reads nobody else."""
        return f"{self._plain_uri}&readPreference={mode}&readPreferenceTags=held:back"

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Have it apply nothing more, meanwhile."""
        self._hold("alwaysOn")
        try:
            yield
        finally:
            self._hold("off")

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """Have it hear of nothing more, meanwhile, not even what time it is."""
        hold = functools.partial(
            self._client.admin.command, "configureFailPoint", DEAFNESS
        )
        entered = hold(mode="alwaysOn")["count"]
        try:
            with MongoClient[Any](self._plain_uri) as client:
                client.lagging.others.insert_one({})  # it hears of this at most
            self._client.admin.command(
                "waitForFailPoint",
                DEAFNESS,
                timesEntered=entered + 1,
                maxTimeMS=round(1000 * PATIENCE),
            )
            yield
        finally:
            hold(mode="off")

    def _hold(self, mode: str) -> None:
        self._client.admin.command("configureFailPoint", "rsSyncApplyStop", mode=mode)

    async def is_waited_for(self) -> None:
        """Return when somebody's read waits for it to catch up."""
        stages = [
            {"$currentOp": {"allUsers": True}},
            {"$match": {"command.readConcern.afterClusterTime": {"$exists": True}}},
        ]
        async with asyncio.timeout(PATIENCE):
            # No signal comes from the server.
            while not list(self._client.admin.aggregate(stages)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@contextlib.contextmanager
def three_members() -> Iterator[FailingReplicaSet]:
    """Three members, of which a secondary has a tag."""
    with FailingReplicaSet(members=3) as replica_set:
        tagged = (replica_set.primary + 1) % 3
        with MongoClient[Any](replica_set.uri) as client:
            config = client.admin.command("replSetGetConfig")["config"]
            config["version"] += 1
            config["members"][tagged]["tags"] = {"held": "back"}
            # A third member that follows the laggard would hold up every majority write
            # for the 30 seconds after which it looks for another.
            config["settings"] |= HEARTBEATS | {"chainingAllowed": False}
            client.admin.command("replSetReconfig", config)
        yield replica_set


async def caught_up(
    laggard: Laggard, reading: Callable[[], Awaitable[int]]
) -> Callable[[], Awaitable[int]]:
    """Begin to read, wait until it is held up, and give what ends it."""
    task = asyncio.create_task(reading())  # type: ignore[arg-type]
    await laggard.is_waited_for()
    assert not task.done()

    async def result() -> int:
        async with asyncio.timeout(PATIENCE):
            return await task

    return result
