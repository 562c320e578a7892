"""ADK's ``Session`` objects are what ADK itself would make of what is stored."""

from __future__ import annotations

import copy
import pickle

from google.adk.events import Event
from google.adk.sessions import Session

from mongo_session_service.codec.adk_session import mark, marker_of, to_session
from mongo_session_service.codec.documents import StoredSession
from mongo_session_service.codec.record import SessionRecord
from mongo_session_service.model.records import Marker, SessionKey

MARKER = Marker(3, 1.5)


def stored() -> StoredSession:
    key = SessionKey("app", "user", "s")
    times = {"create_time": MARKER.create_time, "update_time": 2.5}
    record = SessionRecord(key, {"revision": MARKER.revision, **times})
    return StoredSession(record, {"k": [1]}, [Event(author="a")])


def validated(found: StoredSession) -> Session:
    session = Session(
        app_name="app",
        user_id="user",
        id="s",
        state=found.state,
        events=found.events,
        last_update_time=found.record.updated,
    )
    mark(session, found.marker)
    return session


def test_a_session_is_as_if_validated() -> None:
    """Fields, marker and pydantic's own notes equal those of a validated session."""
    found = stored()

    session = to_session(found)

    assert session == validated(found)
    assert session.__getstate__() == validated(found).__getstate__()
    assert session.model_dump_json() == validated(found).model_dump_json()
    assert marker_of(session) == MARKER
    for each in (
        session.model_copy(deep=True),
        copy.deepcopy(session),
        pickle.loads(pickle.dumps(session)),
    ):
        assert each == session
        assert marker_of(each) == MARKER


def test_sessions_share_nothing() -> None:
    """What is changed in one session is not in another."""
    found = stored()
    one, other = to_session(found), to_session(found._replace(state={"k": [1]}))

    one.events.clear()
    mark(one, MARKER.after_append())
    one.state["new"] = 1

    assert marker_of(other) == MARKER
    assert other.state == {"k": [1]}
    assert other.events == found.events != []
    assert one.model_fields_set is not other.model_fields_set


def test_a_session_of_another_service_has_no_marker() -> None:
    """What other services note in a session is not mistaken for a marker."""
    session = Session(id="s", app_name="app", user_id="user")
    assert marker_of(session) is None

    session._storage_update_marker = "2026-01-01"  # noqa: SLF001  ADK's own slot
    assert marker_of(session) is None
