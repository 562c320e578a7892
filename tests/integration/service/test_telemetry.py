"""Spans and metrics of the service's calls, by way of OpenTelemetry's SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event, EventActions
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from pymongo import MongoClient
from support.failpoints import failing, held
from support.otel_recorder import Recording, recording

from mongo_session_service import MongoSessionService

APP, USER, SESSION = "app-name", "user-canary", "monday"
KEY = {"app_name": APP, "user_id": USER, "session_id": SESSION}
STATE = {"key-canary": "value-canary"}


@pytest.fixture
def database(new_database: str) -> str:
    """A database of which nothing was told before."""
    return new_database


@pytest.fixture
def recorded() -> Recording:
    return recording()


def event(**delta: Any) -> Event:
    return Event(author="author-canary", actions=EventActions(state_delta=delta))


def operations(spans: Sequence[ReadableSpan]) -> list[object]:
    return [(each.attributes or {})["db.operation.name"] for each in spans]


async def test_each_call_is_a_span_below_its_callers(
    service: MongoSessionService, database: str, recorded: Recording
) -> None:
    """Calls are client spans by the conventions, children of what called them."""
    before = len(recorded.spans(database))
    with trace.get_tracer("agent").start_as_current_span("turn") as turn:
        session = await service.create_session(**KEY, state=STATE)
        await service.append_event(session=session, event=event(a=1))
        await service.get_session(**KEY)
        await service.list_sessions(app_name=APP)
        await service.wait_for(**KEY, revision=1)
        await service.prune()
    spans = recorded.spans(database)[before:]

    named = [
        *("create_session", "append_event", "get_session"),
        *("list_sessions", "wait_for", "prune"),
    ]
    assert operations(spans) == named
    assert [each.name for each in spans] == [f"{name} {database}" for name in named]
    for each in spans:
        assert each.kind is SpanKind.CLIENT
        assert each.parent is not None
        assert each.parent.span_id == turn.get_span_context().span_id
        assert each.status.status_code is StatusCode.UNSET
    assert dict(spans[0].attributes or {}) == {
        "db.system.name": "mongodb",
        "db.namespace": database,
        "db.operation.name": "create_session",
        "mongo_session_service.app_name": APP,
        "mongo_session_service.batch.size": 1,
        "gen_ai.conversation.id": SESSION,
    }
    assert (spans[1].attributes or {})["gen_ai.conversation.id"] == SESSION
    assert (spans[1].attributes or {})["mongo_session_service.app_name"] == APP
    assert "mongo_session_service.app_name" not in (spans[-1].attributes or {})


async def test_a_new_session_is_named_by_the_span_of_its_call(
    service: MongoSessionService, recorded: Recording, database: str
) -> None:
    """Also if the service gives it its id; that of a fork has the session's forked."""
    before = len(recorded.spans(database))
    new = await service.create_session(app_name=APP, user_id="user")
    blank = await service.create_session(app_name=APP, user_id="user", session_id=" ")
    await service.append_event(new, Event(author="user"))
    await service.fork_session(app_name=APP, user_id="user", session_id=new.id)
    with pytest.raises(AlreadyExistsError):
        await service.create_session(app_name=APP, user_id="user", session_id=new.id)

    spans = recorded.spans(database)[before:]
    named = [(each.attributes or {}).get("gen_ai.conversation.id") for each in spans]
    assert named == [new.id, blank.id, *[new.id] * 3]


async def test_a_failure_names_its_error(
    service: MongoSessionService, database: str, recorded: Recording
) -> None:
    """A call that raises has the error's type on its span and in the metric."""
    await service.create_session(**KEY)
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**KEY)

    span = recorded.spans(database)[-1]
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "AlreadyExistsError"
    durations = recorded.points(database)["db.client.operation.duration s"]
    failed = [each for each in durations if "error.type" in each.attributes]
    assert [(each.count, dict(each.attributes)) for each in failed] == [
        (
            1,
            {
                "db.system.name": "mongodb",
                "db.namespace": database,
                "db.operation.name": "create_session",
                "error.type": "AlreadyExistsError",
            },
        )
    ]


async def test_a_cancelled_call_is_recorded(
    victim: MongoSessionService,
    database: str,
    admin: MongoClient,
    recorded: Recording,
) -> None:
    """Its span ends with an error."""
    session = await victim.create_session(**KEY)
    with held(admin, "commitTransaction") as wait_until_held:
        appending = asyncio.create_task(victim.append_event(session, event(a=1)))
        await asyncio.to_thread(wait_until_held)
        appending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await appending

    span = recorded.spans(database)[-1]
    assert operations([span]) == ["append_event"]
    assert (span.attributes or {})["error.type"] == "CancelledError"


async def test_batches_are_recorded(
    service: MongoSessionService, database: str, recorded: Recording
) -> None:
    """Appends that were committed together are marked, and counted as batches."""
    sessions = [
        await service.create_session(app_name=APP, user_id=USER) for _ in range(8)
    ]
    appends = (service.append_event(each, event(a=1)) for each in sessions)
    await asyncio.gather(*appends)

    sizes = [
        (each.attributes or {})["mongo_session_service.batch.size"]
        for each in recorded.spans(database)[-8:]
    ]
    assert sizes == [8] * 8
    (point,) = recorded.points(database)[
        "mongo_session_service.commit.batch_size {write}"
    ]
    assert (point.count, point.sum, point.max) == (9, 16, 8)


async def test_trouble_is_counted(
    victim: MongoSessionService,
    database: str,
    admin: MongoClient,
    recorded: Recording,
) -> None:
    """Conflicts, retries and stale appends are counted, each as what it is."""
    session = await victim.create_session(**KEY)
    stale = await victim.get_session(**KEY)
    assert stale is not None
    passing = {"errorLabels": ["TransientTransactionError"]}
    with failing(admin, "update", times=2, errorCode=112, **passing):
        await victim.append_event(session, event(a=1))
    with failing(admin, "update", times=1, errorCode=11602, **passing):
        await victim.append_event(session, event(a=2))
    with pytest.raises(StaleSessionError):
        await victim.append_event(stale, event(a=3))

    def count(what: str) -> float:
        return recorded.count(database, f"mongo_session_service.{what}")

    assert count("transaction.conflicts {conflict}") == 2
    assert count("transaction.retries {retry}") == 3
    assert count("append.stale {append}") == 1


async def test_latencies_are_in_seconds(
    victim: MongoSessionService,
    database: str,
    admin: MongoClient,
    recorded: Recording,
) -> None:
    """The histogram has the conventions' unit and boundaries, and the real time."""
    slow = {"blockConnection": True, "blockTimeMS": 120}
    with failing(admin, "aggregate", times=1, **slow):
        await victim.get_user_state(app_name=APP, user_id=USER)

    (point,) = [
        each
        for each in recorded.points(database)["db.client.operation.duration s"]
        if each.attributes["db.operation.name"] == "get_user_state"
    ]
    boundaries = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
    assert tuple(point.explicit_bounds) == boundaries
    assert 0.12 <= point.sum < 10
