"""A session at one point of the deployment's time, where following it can begin."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from bson.timestamp import Timestamp
from google.adk.platform import time as platform_time

from mongo_session_service.changes.change import Change
from mongo_session_service.changes.happenings import Appended
from mongo_session_service.codec.documents import decode_shared_state, decode_state
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.codec.visibility import check_session
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.model import scopes
from mongo_session_service.model.records import Marker, SessionKey
from mongo_session_service.model.scopes import ScopedState
from mongo_session_service.sessions import queries

_RETRY: Final = 0.02  # seconds

PAGE: Final = 256
"""Events read at once, if they fit into a reply of 16 MB."""


@dataclass(frozen=True, slots=True)
class View:
    """A session, and its events after a revision: a page of them, if it is full."""

    at: Timestamp
    key: SessionKey
    marker: Marker
    update_time: float
    expire_time: float | None
    scopes: ScopedState
    appended: list[Change]
    is_complete: bool
    """Whether there are no more events than these."""

    def snapshot(self) -> Change:
        """The whole merged state, as a change."""
        return Change(
            kind="snapshot",
            **self.key.id,
            revision=self.marker.revision,
            state=scopes.merge(self.scopes),
            time=self.update_time,
        )

    def shared_state(self) -> list[Change]:
        """State of the app and the user, as changes to who may have missed some."""
        app_name, user_id, _ = self.key
        app = scopes.merge(ScopedState(app=self.scopes.app))
        user = scopes.merge(ScopedState(user=self.scopes.user))
        return [
            Change(
                kind="state",
                app_name=app_name,
                user_id=owner,
                state_delta=delta,
                time=self.update_time,
            )
            for owner, delta in ((None, app), (user_id, user))
            if delta
        ]


async def load_view(
    connection: Connection,
    key: SessionKey,
    *,
    after_revision: int | None,
    not_before: Timestamp,
) -> View | None:
    """A session with its events after a revision, or with none; None if not stored.

    Right after an election a new primary may not know yet that what the old one told
    is committed; it is asked until it does.
    """
    unions = [
        {"coll": getattr(connection, each.collection).name, "pipeline": each.stages()}
        for each in queries.shared_state(key.app_name, key.user_id)
    ]
    stages: list[dict[str, Any]] = [
        {"$match": {"_id": key.id, **queries.visible(platform_time.get_time())}},
        *({"$unionWith": each} for each in unions),
    ]
    while True:
        found = await snapshots.snapshot_at(connection, connection.sessions, stages)
        if found.at >= not_before:
            break
        await asyncio.sleep(_RETRY)
    session = next((each for each in found.documents if _is_session(each)), None)
    if session is None:
        return None
    check_session(session)
    hooks = connection.hooks
    shared = decode_shared_state(key, found.documents, hooks)
    own = decode_state(session["state"], Owner.of_session(key), hooks)
    appended, is_complete = (
        ([], True)
        if after_revision is None
        else await _load_appended(connection, key, after_revision, found.at)
    )
    return View(
        at=found.at,
        key=key,
        marker=Marker.of(session),
        update_time=session["update_time"],
        expire_time=session.get("expire_time"),
        scopes=ScopedState(shared.app, shared.user, own),
        appended=appended,
        is_complete=is_complete,
    )


async def _load_appended(
    connection: Connection, key: SessionKey, after_revision: int, at: Timestamp
) -> tuple[list[Change], bool]:
    """A page of a session's events, and whether it is the last."""
    stages: list[dict[str, Any]] = [
        {"$match": queries.events_after(key, after_revision)},
        {"$sort": {"_id": 1}},
        {"$limit": PAGE},
    ]
    page = await snapshots.snapshot_at(
        connection, connection.events, stages, at=at, whole=False
    )
    appended = [
        Appended(key, each, connection.hooks).change() for each in page.documents
    ]
    return appended, page.is_whole and len(appended) < PAGE


def _is_session(document: dict[str, Any]) -> bool:
    id_ = document["_id"]
    return isinstance(id_, dict) and "session_id" in id_
