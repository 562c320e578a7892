"""Reading sessions as they have been."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from google.adk.platform import time as platform_time

from mongo_session_service.codec.documents import decode_sessions, decode_state
from mongo_session_service.codec.hooks import Owner
from mongo_session_service.codec.visibility import is_visible
from mongo_session_service.driver.connection import Connection
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.records import SessionKey, StoredSession

from . import queries
from .history import delta_of, fold, inferred, recorded
from .queries import Document, Wanted
from .store import SessionStore

_DELTA: Final = {"event.actions.state_delta": 1}


class Revisited(NamedTuple):
    """A session as it was, and the state it began with."""

    session: StoredSession
    initial: dict[str, Any]


class Beginning(NamedTuple):
    """What is known of a stored session before its log is read."""

    session: Document
    apart: Document | None

    @classmethod
    async def load(cls, store: SessionStore, key: SessionKey) -> Beginning | None:
        """Read it, as a majority has it; None if the session is not stored."""
        found = await store.read(
            Wanted("sessions", {"_id": key.id}),
            Wanted("events", {"_id": key.event_id(0)}),
        )
        return cls.among(found, key)

    @classmethod
    def among(cls, documents: list[Document], key: SessionKey) -> Beginning | None:
        """Find it among what was read; None if the session is not stored."""
        ids = (key.id, key.event_id(0))
        session, apart = (
            next((each for each in documents if each["_id"] == id_), None)
            for id_ in ids
        )
        if session is None or not is_visible(session, platform_time.get_time()):
            return None
        return cls(session, apart)


async def revisit(
    connection: Connection, store: SessionStore, key: SessionKey, revision: int | None
) -> Revisited | None:
    """A session with its log up to a revision, or all of it; None if it is not stored.

    Raises:
        InvalidInputError: it has not come to that revision.
    """
    wanted = (
        queries.events_after(key, 0)
        if revision is None
        else queries.events_until(key, revision)
    )
    documents = await store.read(
        Wanted("sessions", {"_id": key.id}),
        Wanted("events", {"_id": key.event_id(0)}),
        Wanted("events", wanted, latest_first=True),
        *queries.shared_state(key.app_name, key.user_id),
    )
    beginning = Beginning.among(documents, key)
    if beginning is None:
        return None
    head = beginning.session
    revision = checked(head, revision)
    # Without transactions there may be more events by now.
    events = [
        each
        for each in documents
        if "event" in each and each["_id"]["revision"] <= revision
    ]
    shared = [each for each in documents if not {"event", "create_time"} & each.keys()]
    log = [delta_of(each) for each in reversed(events)]
    initial = await initial_state(connection, key, beginning, log)
    at = events[0]["event"].get("timestamp") if log else head["create_time"]
    past = {
        "state": fold(initial, log),
        "revision": revision,
        "update_time": head["update_time"] if revision == head["revision"] else at,
    }
    now, hooks = platform_time.get_time(), connection.hooks
    mixed = [{**head, **past}, *events, *shared]
    session = next(decode_sessions(mixed, now, hooks), None)
    if session is None:
        return None  # it has expired just now
    return Revisited(session, decode_state(initial, Owner.of_session(key), hooks))


async def initial_state(
    connection: Connection, key: SessionKey, beginning: Beginning, log: list[Document]
) -> Document:
    """The fields of the state that a session began with, as far as that is known.

    Args:
        connection: Where it is.
        key: The session.
        beginning: What is known of it.
        log: What the first events of its log have set.
    """
    session = beginning.session
    known = recorded(session, beginning.apart)
    if known is not None:
        return known
    rest = await deltas(connection, key, session["revision"], after=len(log))
    return inferred(session["state"], [*log, *rest])


async def deltas(
    connection: Connection, key: SessionKey, revision: int, *, after: int = 0
) -> list[Document]:
    """What a session's events up to a revision have set, and nothing else of them."""
    where = queries.events_until(key, revision, after)
    async with connection.reading() as session:
        found = connection.events.find(where, _DELTA, session=session).sort("_id", 1)
        return [delta_of(each) for each in await found.to_list(None)]


def checked(session: Document, revision: int | None) -> int:
    """A revision of a stored session; its latest, if none is asked for.

    Raises:
        InvalidInputError: it has not come so far.
    """
    head: int = session["revision"]
    if revision is not None and revision > head:
        message = f"The session is at revision {head}, and was never at {revision}."
        raise InvalidInputError(message)
    return head if revision is None else revision
