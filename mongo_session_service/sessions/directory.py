"""Directory of sessions: the apps, how many they have, and sessions by their id."""

from __future__ import annotations

from typing import Final, NamedTuple

from mongo_session_service.codec.documents import INITIAL, summaries
from mongo_session_service.driver.connection import Connection
from mongo_session_service.model.records import Document
from mongo_session_service.model.results import SessionSummary
from mongo_session_service.sessions import queries

_MOST: Final = 50
"""Sessions of one id that are found."""

_USER: Final = {"app": "$_id.app_name", "user": "$_id.user_id"}
_BY_USER: Final = ("_id.app_name", "_id.user_id", "create_time", "_id.session_id")
_TOTALS: Final = {"users": {"$sum": 1}, "sessions": {"$sum": "$sessions"}}


class AppCount(NamedTuple):
    """How much an app has stored."""

    app_name: str
    users: int
    """Those with sessions."""
    sessions: int
    """Those being imported included."""


async def apps(at: Connection) -> list[str]:
    """The apps that sessions are stored of, in the order of their names.

    The server steps from one app to the next in an index, whatever they hold.

    Raises:
        StorageUnavailableError: MongoDB was unavailable for a minute.
    """
    stages: list[Document] = [{"$group": {"_id": "$_id.app_name"}}]
    return sorted(each["_id"] for each in await _named(at, stages))


async def counts(at: Connection) -> list[AppCount]:
    """The apps with sessions that have not expired, and how many, by name.

    The server reads an index as a whole, and no session.

    Raises:
        StorageUnavailableError: MongoDB was unavailable for a minute.
    """
    over: list[Document] = [
        {"$match": queries.expired(at.clock.now())},
        {"$group": {"_id": _USER, "sessions": {"$sum": -1}}},
    ]
    stages: list[Document] = [
        # An order that an index has, so that it is read instead of the sessions.
        {"$sort": dict.fromkeys(_BY_USER, 1)},
        {"$group": {"_id": _USER, "sessions": {"$sum": 1}}},
        {"$unionWith": {"coll": at.sessions.name, "pipeline": over}},
        {"$group": {"_id": "$_id", "sessions": {"$sum": "$sessions"}}},
        {"$match": {"sessions": {"$gt": 0}}},
        {"$group": {"_id": "$_id.app", **_TOTALS}},
        {"$sort": {"_id": 1}},
    ]
    found = await _named(at, stages)
    return [AppCount(each["_id"], each["users"], each["sessions"]) for each in found]


async def _named(at: Connection, stages: list[Document]) -> list[Document]:
    """What a pipeline finds by app; another tool may have stored what is no name."""
    found = await at.retry(at.aggregate, at.sessions, stages)
    return [each for each in found if isinstance(each["_id"], str)]


async def with_id(
    at: Connection, app_name: str, user_id: str | None, session_id: str
) -> list[SessionSummary]:
    """An app's sessions with an id, 50 at most; of any user if none is given.

    Without a user the server looks at each of the app's keys in an index, and at no
    other document: about a second for a million sessions.

    Raises:
        StorageUnavailableError: MongoDB was unavailable for a minute.
    """
    wanted = {"_id.app_name": app_name, "_id.session_id": session_id}
    if user_id is not None:
        wanted["_id.user_id"] = user_id
    stages: list[Document] = [
        {"$match": {**wanted, **queries.visible(at.clock.now())}},
        {"$limit": _MOST},
        {"$project": {INITIAL: 0, "state": 0}},
    ]
    found = await at.retry(at.aggregate, at.sessions, stages)
    return summaries(found, at.hooks)
