"""Directory of sessions: the apps that have some, and sessions found by their id."""

from __future__ import annotations

from typing import Final

from mongo_session_service.codec.documents import INITIAL, summaries
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import persistently
from mongo_session_service.model.records import Document
from mongo_session_service.model.results import SessionSummary
from mongo_session_service.sessions import queries

_MOST: Final = 50
"""Sessions of one id that are found."""


async def apps(at: Connection) -> list[str]:
    """The apps that sessions are stored of, in the order of their names.

    The server steps from one app to the next in an index, whatever they hold.

    Raises:
        StorageUnavailableError: MongoDB was unavailable for a minute.
    """
    stages: list[Document] = [{"$group": {"_id": "$_id.app_name"}}]
    found = await persistently(lambda: at.aggregate(at.sessions, stages))
    # Another tool may have stored what is no name.
    return sorted(each["_id"] for each in found if isinstance(each["_id"], str))


async def with_id(
    at: Connection, app_name: str, user_id: str | None, session_id: str, now: float
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
        {"$match": {**wanted, **queries.visible(now)}},
        {"$limit": _MOST},
        {"$project": {INITIAL: 0, "state": 0}},
    ]
    found = await persistently(lambda: at.aggregate(at.sessions, stages))
    return summaries(found)
