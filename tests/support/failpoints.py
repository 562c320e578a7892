"""Making the server fail on command, and asking it what is still going on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from pymongo import MongoClient

VICTIM = "service-under-test"
"""The ``appName`` by which failing servers pick their victims."""


def victim_uri(uri: str) -> str:
    """A URI whose clients the failing server recognises."""
    return f"{uri}&appName={VICTIM}&heartbeatFrequencyMS=500"


@contextlib.contextmanager
def failing(
    admin: MongoClient, *commands: str, times: int = 0, skip: int = 0, **how: Any
) -> Iterator[Callable[[], object]]:
    """Fail these commands of the victim's, ``times`` times, or always after ``skip``.

    ``how`` is what ``failCommand`` takes: ``errorCode``, ``errorLabels``,
    ``closeConnection``, ``blockConnection`` with ``blockTimeMS``. Gives a function that
    blocks until the first of them was hit.
    """
    data = {"failCommands": list(commands), "appName": VICTIM, **how}
    mode: Any = {"times": times} if times else {"skip": skip}
    with _failpoint(admin, "failCommand", mode, data) as wait_until_hit:
        yield wait_until_hit


@contextlib.contextmanager
def held(admin: MongoClient, command: str) -> Iterator[Callable[[], object]]:
    """Do these commands, but answer none of them before the end of the block.

    Gives a function that blocks until the first of them is held.
    """
    data = {"commands": [command]}
    point = "waitAfterCommandFinishesExecution"
    with _failpoint(admin, point, "alwaysOn", data) as wait_until_hit:
        yield wait_until_hit


@contextlib.contextmanager
def _failpoint(
    admin: MongoClient, name: str, mode: Any, data: dict[str, Any]
) -> Iterator[Callable[[], object]]:
    point = {"configureFailPoint": name}
    hits = admin.admin.command({**point, "mode": mode, "data": data})["count"]
    next_hit = {"waitForFailPoint": name, "timesEntered": hits + 1}
    try:
        yield lambda: admin.admin.command({**next_hit, "maxTimeMS": 60_000})
    finally:
        admin.admin.command({**point, "mode": "off"})


def connections(admin: MongoClient) -> int:
    """How many connections the victim has to the server."""
    stages = [
        {"$currentOp": {"allUsers": True, "idleConnections": True}},
        {
            "$match": {
                "$or": [
                    {"appName": VICTIM},
                    {"clientMetadata.application.name": VICTIM},
                ]
            }
        },
    ]
    return len(list(admin.admin.aggregate(stages)))


def is_at(admin: MongoClient, command: str) -> bool:
    """Whether the server is at such a command of the victim's."""
    of_victim = {"appName": VICTIM, "active": True}
    at = {"$match": {**of_victim, f"command.{command}": {"$exists": True}}}
    return bool(list(admin.admin.aggregate([{"$currentOp": {}}, at])))


def open_transactions(admin: MongoClient) -> int:
    """How many transactions of the victim's are open on the server."""
    stages = [
        {
            "$currentOp": {
                "allUsers": True,
                "idleSessions": True,
                "idleConnections": True,
            }
        },
        {"$match": {"appName": VICTIM, "transaction.parameters.autocommit": False}},
    ]
    return len(list(admin.admin.aggregate(stages)))


@contextlib.contextmanager
def held_index_builds(admin: MongoClient) -> Iterator[Callable[[], object]]:
    """Let index builds of collections that hold documents end with the block only.

    Gives a function that blocks until the first of them is held.
    """
    with _failpoint(admin, "hangAfterStartingIndexBuild", "alwaysOn", {}) as wait:
        yield wait
