"""Databases for tests: used again where that is cheaper than creating them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from pymongo import MongoClient

from mongo_session_service import MongoSessionService

_HISTORY: Final = 30
"""Seconds, and no longer than a test may read what was a while ago."""


def forget_soon(uri: str) -> None:
    """Have a server remove what is dropped.

    It keeps all files for five minutes, in case somebody reads what was then. Those of
    all tests in that time were 7,000, and half of what the server had to do.
    """
    with MongoClient(uri) as admin:
        admin.admin.command(
            {"setParameter": 1, "minSnapshotHistoryWindowInSeconds": _HISTORY}
        )


def new_name() -> str:
    """A name that no database has."""
    return f"test_{uuid.uuid4().hex}"


def drop(admin: MongoClient, name: str) -> None:
    """Drop a database, its collections first: MongoDB waits 0.1 s if there are any."""
    for collection in admin[name].list_collection_names():
        admin[name].drop_collection(collection)
    admin.drop_database(name)


class DatabasePool:
    """Empty databases with the collections and indexes that setup creates.

    For the files of one a server takes 40 ms of CPU, created and dropped: twice as much
    as the rest of most tests. To look at it and delete the documents takes 2 ms.
    """

    def __init__(self, admin: MongoClient) -> None:
        self._admin = admin
        self._free: list[str] = []
        self._as_set_up: dict[str, Any] = {}

    async def set_up(self, uri: str) -> None:
        """Make the first, which shows what databases are like that are used again."""
        name = new_name()
        async with MongoSessionService(uri, database=name) as service:
            await service.setup()
        self._as_set_up = self._described(name)
        self._give_back(name)

    @contextmanager
    def lent(self) -> Iterator[str]:
        """Lend a database to a test; one that it has made otherwise is dropped."""
        name = self._free.pop() if self._free else new_name()
        yield name
        if self._described(name) == self._as_set_up and not self._is_in_use(name):
            self._give_back(name)
        else:
            drop(self._admin, name)

    def drop_all(self) -> None:
        for name in self._free:
            drop(self._admin, name)

    def _give_back(self, name: str) -> None:
        # A majority's: else the next test's first read may show what was deleted.
        for each in self._of_each(name, self._as_set_up, {"$limit": 1}):
            self._admin[name][each["in"]].delete_many({})
        self._free.append(name)

    def _is_in_use(self, name: str) -> bool:
        """Tell whether a client that nobody has closed has a cursor there."""
        stages = [
            {"$currentOp": {"allUsers": True, "idleCursors": True}},
            {"$match": {"ns": {"$regex": rf"^{name}\."}}},
        ]
        return bool([*self._admin.admin.aggregate(stages)])

    def _described(self, name: str) -> dict[str, Any]:
        """Collections, each with its options and indexes."""
        described = {
            each["name"]: {"options": each["options"]}
            for each in self._admin[name].list_collections()
        }
        for each in self._of_each(name, described, {"$indexStats": {}}):
            described[each["in"]][each["spec"]["name"]] = each["spec"]
        return described

    def _of_each(
        self, name: str, collections: Iterable[str], stage: dict[str, Any]
    ) -> Iterable[dict[str, Any]]:
        """Read a stage's results from each collection, in one command for all."""
        # Each command of the thousands would take 0.2 ms of CPU.
        parts = [
            (each, [stage, {"$project": {"spec": 1, "in": {"$literal": each}}}])
            for each in collections
        ]
        if not parts:
            return ()
        (first, own), *others = parts
        unions = [
            {"$unionWith": {"coll": each, "pipeline": its}} for each, its in others
        ]
        return self._admin[name][first].aggregate([*own, *unions])
