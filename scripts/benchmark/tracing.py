"""What spans and metrics cost: CPU of the appending process per append.

Measures without OpenTelemetry's SDK, and with one that samples everything and exports
nothing. Appends with and without spans take turns, and so do calls that do nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from google.adk.events import Event
from google.adk.sessions import Session
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.telemetry import traced

SESSIONS = 32
APPENDS = 480
CALLS = 20_000
ROUNDS = 15


class Idle:
    """What has a call that does nothing."""

    database_name = "bench"

    @traced
    async def do_nothing(self, *, app_name: str) -> None:
        """Take the time of a call."""


async def call(nothing: Callable[..., Any]) -> float:
    """Microseconds of CPU per call that does nothing."""
    started = time.process_time()
    for _ in range(CALLS):
        await nothing(app_name="bench")
    return (time.process_time() - started) / CALLS * 1e6


async def compare_idle(what: str) -> None:
    """Print the least of some rounds, with and without tracing in turns."""
    idle = Idle()
    untraced = partial(Idle.do_nothing.__wrapped__, idle)
    plain, with_tracing = [], []
    for _ in range(ROUNDS):
        plain.append(await call(untraced))
        with_tracing.append(await call(idle.do_nothing))
    cost = min(with_tracing) - min(plain)
    print(f"{what}: {cost:+.1f} us for a traced call that does nothing")


async def measure(append: Callable[..., Any], sessions: list[Session]) -> float:
    """Microseconds of CPU per append, to all sessions at once."""
    started = time.process_time()
    for _ in range(APPENDS // len(sessions)):
        await asyncio.gather(*(append(each, Event(author="x")) for each in sessions))
    return (time.process_time() - started) / APPENDS * 1e6


async def compare(uri: str, what: str) -> None:
    """Print the least of some rounds, which is what noise adds to."""
    async with MongoSessionService(uri) as service:
        sessions = [
            await service.create_session(app_name="bench", user_id="u")
            for _ in range(SESSIONS)
        ]
        untraced = partial(MongoSessionService.append_event.__wrapped__, service)
        plain, traced = [], []
        for _ in range(ROUNDS):
            plain.append(await measure(untraced, sessions))
            traced.append(await measure(service.append_event, sessions))
    cost = min(traced) - min(plain)
    print(f"{what}: {min(plain):.0f} us per append, {cost:+.1f} us traced")


def main() -> int:
    """Measure without an SDK, and then with it, for it stays; the exit code."""
    argparse.ArgumentParser("scripts/bench tracing", description=__doc__).parse_args()
    with EmbeddedReplicaSet() as mongodb:
        asyncio.run(compare(mongodb.uri, "without an SDK"))
        asyncio.run(compare_idle("without an SDK"))
        trace.set_tracer_provider(TracerProvider())
        metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
        asyncio.run(compare(mongodb.uri, "with an SDK"))
        asyncio.run(compare_idle("with an SDK"))
    return 0
