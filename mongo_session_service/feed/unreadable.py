"""Unreadable changes: what subscribers receive of content that cannot be decoded.

One change must not end a stream, and the subscribers of a session count its revisions.
"""

from __future__ import annotations

import logging

from mongo_session_service.changes.change import Change
from mongo_session_service.changes.decoder import Appended, ChangeEvent, Created
from mongo_session_service.errors import StorageError

logger = logging.getLogger(__name__)


def without_content(item: ChangeEvent, error: StorageError) -> Change | None:
    """An event or a session without its content, with a warning; None for all else."""
    logger.warning("Subscribers do not receive the content of a change. %s", error)
    if isinstance(item, Appended):
        return _without_event(item)
    if isinstance(item, Created):
        revision, time = item.document["revision"], item.document["create_time"]
        return Change(kind="created", **item.key.id, revision=revision, time=time)
    return None


def readable(appended: Appended) -> Change:
    """The change, without its event if that cannot be decoded."""
    try:
        return appended.change()
    except StorageError as error:
        return without_content(appended, error) or _without_event(appended)


def _without_event(appended: Appended) -> Change:
    event, revision = (
        appended.document.get("event"),
        appended.document["_id"]["revision"],
    )
    stored = event.get("timestamp") if isinstance(event, dict) else None
    time = float(stored) if isinstance(stored, int | float) else 0.0
    return Change(kind="appended", **appended.key.id, revision=revision, time=time)
