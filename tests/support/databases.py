"""Dropping a test's database at once, and its files soon."""

from __future__ import annotations

from pymongo import MongoClient

_HISTORY = 30
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


def drop(admin: MongoClient, name: str) -> None:
    """Drop a database, its collections first: MongoDB waits 0.1 s if there are any."""
    for collection in admin[name].list_collection_names():
        admin[name].drop_collection(collection)
    admin.drop_database(name)
