"""A session at one point of the deployment's time, where following it can begin."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from bson.timestamp import Timestamp

from mongo_session_service import queries, scopes
from mongo_session_service.codec import decode_shared_state, decode_state
from mongo_session_service.database import Connection
from mongo_session_service.records import Marker, SessionKey
from mongo_session_service.scopes import ScopedState

from .change import Change
from .items import Appended

_RETRY: Final = 0.02  # seconds

PAGE: Final = 256
"""Events read at once; a session far ahead is caught up with page by page."""


@dataclass(frozen=True, slots=True)
class View:
    """A session, and its events after a revision: a page of them, if it is full."""

    at: Timestamp
    key: SessionKey
    marker: Marker
    update_time: float
    scopes: ScopedState
    appended: list[Change]

    @property
    def is_complete(self) -> bool:
        """Whether there are no more events than these."""
        return len(self.appended) < PAGE

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
    not_before: Timestamp | None = None,
) -> View | None:
    """A session with its events after a revision, or with none; None if not stored.

    Right after an election a new primary may not know yet that what the old one told
    is committed; it is asked until it does.
    """
    unions: list[tuple[Any, list[dict[str, Any]]]] = [
        (getattr(connection, each.collection), each.stages())
        for each in queries.shared_state(key.app_name, key.user_id)
    ]
    if after_revision is not None:
        later = queries.events_after(key, after_revision)
        pipeline: list[dict[str, Any]] = [
            {"$match": later},
            {"$sort": {"_id": 1}},
            {"$limit": PAGE},
        ]
        unions.append((connection.events, pipeline))
    stages: list[dict[str, Any]] = [
        {"$match": {"_id": key.id}},
        *(
            {"$unionWith": {"coll": collection.name, "pipeline": pipeline}}
            for collection, pipeline in unions
        ),
    ]
    while True:
        documents, at = await connection.snapshot_at(connection.sessions, stages)
        if not_before is None or at >= not_before:
            return _decode(documents, at, key)
        await asyncio.sleep(_RETRY)


def _decode(
    documents: list[dict[str, Any]], at: Timestamp, key: SessionKey
) -> View | None:
    session, shared, appended = None, [], []
    for document in documents:
        id_ = document["_id"]
        if "revision" in id_:
            appended.append(Appended(key, document).change())
        elif "session_id" in id_:
            session = document
        else:
            shared.append(document)
    if session is None:
        return None
    state = decode_shared_state(shared)
    return View(
        at=at,
        key=key,
        marker=Marker(session["revision"], session["create_time"]),
        update_time=session["update_time"],
        scopes=ScopedState(state.app, state.user, decode_state(session["state"])),
        appended=appended,
    )
