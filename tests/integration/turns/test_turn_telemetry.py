"""Spans and metrics of turns in which agents run, by way of OpenTelemetry's SDK."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode
from pymongo import MongoClient
from support.abandoned_turns import abandon_turn
from support.conversations import start
from support.one_session import IDS
from support.otel_recorder import Recording, recording
from support.scripted_model import ScriptedModel
from support.spoken_model import SpokenModel

from mongo_session_service import MongoSessionService

TURN = "mongo_session_service.turn"


@pytest.fixture
def database(new_database: str) -> str:
    """A database of which nothing was told before."""
    return new_database


@pytest.fixture
def recorded() -> Recording:
    return recording()


def ancestors(span: ReadableSpan, spans: list[ReadableSpan]) -> list[ReadableSpan]:
    """The spans among others that a span is below of."""
    above = [
        each
        for each in spans
        if each.context and span.parent and each.context.span_id == span.parent.span_id
    ]
    return [*above, *(it for each in above for it in ancestors(each, spans))]


async def test_a_turn_is_a_span_between_its_caller_and_its_agent(
    service: MongoSessionService, database: str, recorded: Recording
) -> None:
    """It lasts until the turn's end, and says how that was; ADK's spans are below."""
    await service.create_session(**IDS)
    model = SpokenModel()
    before = len(recorded.all_spans())
    with trace.get_tracer("app").start_as_current_span("request") as request:
        running = await start(service, model, "question-canary")
    assert recorded.count(database, f"{TURN}.running {{turn}}") == 1
    model.say("answer-canary")
    model.end_answer()
    await running.result()

    assert recorded.count(database, f"{TURN}.running {{turn}}") == 0
    spans = recorded.all_spans()[before:]
    (turn,) = [each for each in spans if each.name == f"running_turn {database}"]
    assert turn.parent is not None
    assert turn.parent.span_id == request.get_span_context().span_id
    assert dict(turn.attributes or {}) == {
        "db.namespace": database,
        "mongo_session_service.app_name": IDS["app_name"],
        "gen_ai.conversation.id": IDS["session_id"],
        f"{TURN}.epoch": 1,
        f"{TURN}.status": "ended",
    }
    (agent,) = [each for each in spans if each.name == "invoke_agent agent"]
    assert turn in ancestors(agent, spans)
    assert "canary" not in turn.to_json()


async def test_turns_are_counted_by_their_end(
    service: MongoSessionService, database: str, recorded: Recording
) -> None:
    """Ended, stopped or failed; a failure has its error's type, never its reason."""
    await service.create_session(**IDS)
    ended = await start(service, ScriptedModel(script=["Yes."]))
    await ended.result()
    stopped = await start(service, SpokenModel())
    await stopped.stop("reason-canary")
    failing = await start(service, ScriptedModel(script=[]))
    with pytest.raises(IndexError):
        await failing.result()

    points = recorded.points(database)[f"{TURN}.duration s"]
    counts = {it.attributes[f"{TURN}.status"]: it.count for it in points}
    errors = [it.attributes.get("error.type") for it in points]
    assert counts == {"ended": 1, "stopped": 1, "failed": 1}
    assert sorted(errors, key=bool) == [None, None, "IndexError"]
    assert "canary" not in repr(points)
    spans = [it for it in recorded.spans(database) if it.name.startswith("running")]
    codes = [each.status.status_code for each in spans]
    assert codes == [StatusCode.UNSET, StatusCode.UNSET, StatusCode.ERROR]


async def test_abandoned_turns_and_partial_writes_are_counted(
    service: MongoSessionService,
    database: str,
    admin: MongoClient[Any],
    recorded: Recording,
) -> None:
    """Each turn of a dead process, once, and each write of partials.

    Of those turns 0 is exported first, so that Prometheus sees an increase in a process
    that finds one when it starts.
    """
    await service.create_session(**IDS)
    await abandon_turn(service, database, admin)
    model = SpokenModel()
    for texts in (["It ", "is "], ["late."]):
        running = await start(service, model, "question-canary")
        model.say(*texts)
        model.end_answer()
        await running.result()
    await service.close()  # which writes what is left

    metric = f"{TURN}.abandoned {{turn}}"
    assert [recorded.count(database, metric) for _ in range(3)] == [0, 1, 1]
    (point,) = recorded.points(database)[
        "mongo_session_service.partial.write_size {partial}"
    ]
    assert point.sum == admin[database].partials.count_documents({})
    assert 1 <= point.count <= point.sum
