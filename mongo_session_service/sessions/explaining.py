"""What there is to say of a write that was refused."""

from __future__ import annotations

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError

from mongo_session_service.codec.documents import is_same_event
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.transactions import Txn
from mongo_session_service.errors import quoted
from mongo_session_service.model.records import Marker, NewSession, Planned, SessionKey
from mongo_session_service.telemetry import count_stale

from . import queries
from .refused import STALE, OtherTtlError, already_exists, not_found


async def explain(
    connection: Connection, planned: Planned, *, may_retry: bool = False
) -> int:
    """The revision at which a refused write was stored before.

    Raises:
        OtherTtlError: it was not, and may be tried again, as this says.
        StaleSessionError: it was not; the session has moved on.
        SessionNotFoundError: it was not; the session is not stored.
        AlreadyExistsError: the session to be created, or another event with the id of
            the one to be appended, is stored.
    """
    write, expected, now = planned
    if isinstance(write, NewSession):
        raise already_exists(write.key.session_id)

    async def find(txn: Txn) -> tuple[Marker, queries.Document | None]:
        session = await find_session(connection, write.key, now, txn)
        event = await find_event(connection, write.key, write.event["id"], txn)
        return Marker.of(session), event

    # A primary may show what it has not replicated, and lose it when it is deposed.
    # What a transaction has read is on a majority once it is committed.
    marker, stored = await connection.transaction(find)
    if stored is None:
        # It may have changed to what was expected since, so that all looks well.
        if may_retry and expected == marker._replace(ttl=expected.ttl):
            raise OtherTtlError(marker)
        count_stale(connection.database.name)
        raise StaleSessionError(STALE)
    if not is_same_event(write, stored["event"], connection.hooks):
        which = f"Another event with id {quoted(write.event['id'])}"
        raise AlreadyExistsError(f"{which} already exists.")
    revision: int = stored["_id"]["revision"]
    return revision


async def find_event(
    connection: Connection, key: SessionKey, event_id: str, txn: Txn = None
) -> queries.Document | None:
    """The stored event of a session that has this id."""
    query = queries.event_by_id(key, event_id)
    found: queries.Document | None = await connection.events.find_one(
        query, session=txn
    )
    return found


async def find_session(
    connection: Connection, key: SessionKey, now: float, txn: Txn = None
) -> queries.Document:
    """A session's document, without its state.

    Raises:
        SessionNotFoundError: there is none.
    """
    found: queries.Document | None = await connection.sessions.find_one(
        {"_id": key.id, **queries.visible(now)}, {"state": 0}, session=txn
    )
    if found is None:
        raise not_found(key.session_id)
    return found
