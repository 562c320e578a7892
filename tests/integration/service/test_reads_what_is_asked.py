"""How much of a long session each call has the server send."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import bson
import httpx
import pytest
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.events import Event
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from pymongo import AsyncMongoClient, MongoClient, monitoring
from support.abandoned_turns import abandon_turn
from support.command_log import QuietListener
from support.http_paths import SESSION, app_of
from support.long_sessions import store_long_session
from support.one_session import IDS
from support.scripted_model import said
from support.spoken_model import SpokenModel

from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey
from mongo_session_service.testing import Limits

EVENTS, LARGE = 60, 50_000
FEW = GetSessionConfig(num_recent_events=2)
MOST = 6 * LARGE
"""Bytes of the few events that a call may read, twice or so."""

Call = Callable[[MongoSessionService, Runner], Awaitable[object]]


class BytesRead(QuietListener):
    """Counts the bytes of the server's replies."""

    def __init__(self) -> None:
        self.count = 0

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        self.count += len(bson.encode(event.reply))


@pytest.fixture
def bytes_read() -> BytesRead:
    return BytesRead()


@pytest.fixture
async def reading(
    mongodb_uri: str,
    admin: MongoClient,
    database: str,
    limits: Limits,
    bytes_read: BytesRead,
) -> AsyncIterator[MongoSessionService]:
    """A service in which a session of 60 events and 3 MB is stored."""
    async with AsyncMongoClient(mongodb_uri, event_listeners=[bytes_read]) as client:
        service = MongoSessionService(client=client, database=database, _limits=limits)
        await service.setup()
        await store_long_session(service, admin, database, SessionKey(**IDS), EVENTS)
        content = {"role": "user", "parts": [{"text": "x" * LARGE}]}
        admin[database].events.update_many({}, {"$set": {"event.content": content}})
        yield service
        await service.close()


@pytest.fixture
def runner(reading: MongoSessionService) -> Runner:
    model = SpokenModel()
    model.say("An answer.")
    agent = LlmAgent(name="agent", model=model)
    return Runner(agent=agent, app_name=IDS["app_name"], session_service=reading)


def asked(*, streaming: bool = False) -> RunConfig:
    mode = StreamingMode.SSE if streaming else StreamingMode.NONE
    return RunConfig(get_session_config=FEW, streaming_mode=mode)


async def run_turn(service: MongoSessionService, runner: Runner) -> None:
    runner.agent.model.end_answer()  # type: ignore[union-attr]
    user = {"user_id": IDS["user_id"], "session_id": IDS["session_id"]}
    async for _ in service.run_turn(
        runner, **user, new_message=said("Go"), run_config=asked()
    ):
        pass


async def stop_turn(service: MongoSessionService, runner: Runner) -> None:
    user = {"user_id": IDS["user_id"], "session_id": IDS["session_id"]}
    config = asked(streaming=True)
    running = await service.start_turn(
        runner, **user, new_message=said("Go"), run_config=config
    )
    await anext(aiter(running))
    await running.stop()


async def turn(service: MongoSessionService, _: Runner) -> None:
    async with service.turn(**IDS, config=FEW) as session:
        assert len(session.events) == 2


async def rewind(service: MongoSessionService, _: Runner) -> None:
    session = await service.get_session(**IDS, config=FEW)
    assert session is not None
    event = Event(author="user")
    event.actions.rewind_before_invocation_id = "i30"
    await service.append_event(session, event)


async def fork(service: MongoSessionService, _: Runner) -> None:
    forked = await service.fork_session(**IDS, config=FEW)
    assert len(forked.events) == 2


async def read_past(service: MongoSessionService, _: Runner) -> None:
    past = await service.get_session_at(**IDS, revision=30, config=FEW)
    assert past is not None
    assert [each.id for each in past.events] == ["e29", "e30"]
    assert past.state["n"] == 30


async def iterate(service: MongoSessionService, _: Runner) -> None:
    found = service.iter_events(**IDS, rewound=False, newest_first=True, limit=2)
    assert [each.id async for _, each in found] == ["e60", "e59"]


async def ask_over_http(service: MongoSessionService, runner: Runner) -> None:
    runner.agent.model.end_answer()  # type: ignore[union-attr]
    transport = httpx.ASGITransport(app_of(service, runner=runner, run_config=asked()))
    question = {"newMessage": {"role": "user", "parts": [{"text": "Go"}]}}
    own = {"Origin": "http://here"}
    async with httpx.AsyncClient(transport=transport, base_url=own["Origin"]) as http:
        answer = await http.post(f"{SESSION}/turns", json=question, headers=own)
    assert answer.status_code == 202
    async with service.turn(**IDS, config=FEW) as session:
        assert session.events[-1].author == "agent"


@pytest.mark.parametrize(
    "call",
    [
        run_turn,
        stop_turn,
        turn,
        rewind,
        fork,
        read_past,
        iterate,
        ask_over_http,
        lambda service, _: service.get_session(**IDS, config=FEW),
        lambda service, _: service.append(**IDS, event=Event(author="x")),
        lambda service, _: service.trim_session(**IDS, keep_last=10),
        lambda service, _: service.redact_events(**IDS, invocation_id="i30"),
    ],
)
async def test_a_call_reads_no_more_of_the_log_than_it_needs(
    reading: MongoSessionService, runner: Runner, bytes_read: BytesRead, call: Call
) -> None:
    """However long the session is."""
    bytes_read.count = 0
    await call(reading, runner)
    assert bytes_read.count < MOST


@pytest.mark.limits(lease_seconds=0.5, lease_renewal_seconds=0.1)
async def test_a_turn_is_recovered_without_reading_what_was_before(
    reading: MongoSessionService,
    bytes_read: BytesRead,
    admin: MongoClient,
    database: str,
) -> None:
    """Of an abandoned turn, its own events are read, whatever the session holds."""
    await abandon_turn(reading, database, admin)
    bytes_read.count = 0
    async with reading.turn(**IDS, config=FEW) as session:
        assert session.events[-1].error_code == "INVOCATION_ABORTED"
    assert bytes_read.count < MOST
