"""Measures the bytes that conversations take, and what compressing them harder costs.

Each variant has a database of its own on one MongoDB, and they take turns in each
round. A conversation has five turns of four events: a question, a call of a function,
its response and an answer, of English text. All ids are UUIDs, as ADK makes them.

The CPU of MongoDB is that of the appends and of a checkpoint after them, which
compresses what they have written. What a variant costs more is the median of the
rounds' differences.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pydoc_data.topics import topics
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.genai import types
from pymongo import AsyncMongoClient

from benchmark import circumstances
from benchmark.circumstances import show_progress
from benchmark.figures import Sample, WrongError, sampled, time_call
from benchmark.report import Report, reporting
from mongo_session_service import MongoSessionService

APP = "support_desk"
TURNS = 5
EVENTS = 4 * TURNS
"""Events of a conversation."""
LANES = 32
CONVERSATIONS = 480
"""In each round of each variant, of which so many run at once as there are lanes."""
ALONE = 10
"""Conversations of a round whose appends come one after another."""
ZSTD = {"storageEngine": {"wiredTiger": {"configString": "block_compressor=zstd"}}}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "events zstd": ZSTD,
    "all zstd": {**ZSTD, "indexOptionDefaults": ZSTD},
}
"""Options of the collection of events: MongoDB's defaults, harder compression of the
events alone, and that of their indexes as well, which is what the service asks for."""
TEXT = " ".join(" ".join(topics.values()).split())


def make_conversation(seed: random.Random) -> Iterator[Event]:
    """Make the events of a conversation, each when it is asked for."""
    for turn in range(TURNS):
        invocation = f"e-{uuid.UUID(int=seed.getrandbits(128), version=4)}"
        call = f"adk-{uuid.UUID(int=seed.getrandbits(128), version=4)}"
        asked = {"order_id": seed.randrange(10**9), "language": "en"}
        found = {"status": "shipped", "carrier": "post", "text": _words(seed, 250)}
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=seed.randrange(4000),
            candidates_token_count=seed.randrange(400),
            total_token_count=seed.randrange(4400),
        )
        parts = (
            ("user", types.Part(text=_words(seed, 100))),
            (
                "agent",
                types.Part(
                    function_call=types.FunctionCall(
                        id=call, name="find_order", args=asked
                    )
                ),
            ),
            (
                "agent",
                types.Part(
                    function_response=types.FunctionResponse(
                        id=call, name="find_order", response=found
                    )
                ),
            ),
            ("agent", types.Part(text=_words(seed, 400))),
        )
        for number, (author, part) in enumerate(parts):
            is_answer = number == len(parts) - 1
            delta = {"turn": turn, "topic": _words(seed, 20)} if is_answer else {}
            yield Event(
                author=author,
                invocation_id=invocation,
                content=types.Content(
                    role="user" if author == "user" else "model", parts=[part]
                ),
                actions=EventActions(state_delta=delta),
                usage_metadata=usage if is_answer else None,
            )


def _words(seed: random.Random, length: int) -> str:
    begin = seed.randrange(len(TEXT) - length)
    return TEXT[begin : begin + length]


@dataclass
class Variant:
    """A service on a database whose events are compressed in one way."""

    client: AsyncMongoClient[Any]
    service: MongoSessionService
    seed: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311
    at_once: list[Sample] = field(default_factory=list)
    alone: list[Sample] = field(default_factory=list)
    oplog: float = 0.0
    """Bytes of oplog that it has written."""

    @classmethod
    async def open(cls, uri: str, name: str) -> Variant:
        """Make the collection of events before the service does."""
        client: AsyncMongoClient[Any] = AsyncMongoClient(uri)
        database = name.replace(" ", "_")
        await client[database].create_collection("events", **VARIANTS[name])
        service = MongoSessionService(uri, database=database)
        await service.setup()
        return cls(client, service)

    async def sample(self) -> None:
        """Append the conversations of a round."""
        before = await self._oplog_bytes()
        self.at_once.append(await self._append(CONVERSATIONS, LANES))
        self.alone.append(await self._append(ALONE, 1))
        self.oplog += await self._oplog_bytes() - before

    async def _append(self, conversations: int, at_once: int) -> Sample:
        waiting = iter(range(conversations))
        async with sampled(self._server_cpu) as sample:

            async def converse() -> None:
                for _ in waiting:
                    user = str(uuid.UUID(int=self.seed.getrandbits(128), version=4))
                    session: Session = await self.service.create_session(
                        app_name=APP, user_id=user
                    )
                    for event in make_conversation(self.seed):
                        call = self.service.append_event(session, event)
                        sample.calls.append(await time_call(call))

            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(converse())
            await self.client.admin.command("fsync")
        return sample

    async def _server_cpu(self) -> float:
        status = await self.client.admin.command("serverStatus")
        used = status["extra_info"]
        return float(used["user_time_us"] + used["system_time_us"]) / 1e6

    async def _oplog_bytes(self) -> float:
        stats = await self.client.local.command("collStats", "oplog.rs")
        return float(stats["size"])

    async def sizes(self) -> tuple[int, dict[str, float]]:
        """Count the events, and the bytes of each collection and index."""
        database = self.client[self.service.database_name]
        found: dict[str, float] = {}
        for name in ("events", "sessions"):
            stats = await database.command("collStats", name, indexDetails=True)
            found[name] = stats["storageSize"] - stats["freeStorageSize"]
            for index, size in stats["indexSizes"].items():
                details = stats["indexDetails"][index]["block-manager"]
                unused = details["file bytes available for reuse"]
                found[f"{name}.{index}"] = size - unused
        return await database.events.count_documents({}), found


async def measure(report: Report, uri: str, rounds: int) -> None:
    """Let the variants have their rounds, and report what they take and cost."""
    variants = {name: await Variant.open(uri, name) for name in VARIANTS}
    order = [*variants]
    for number in range(rounds):
        for name in order:
            show_progress(f"round {number + 1}: {name}")
            await variants[name].sample()
        order.reverse()  # whoever came first has no advantage of it
    for name, it in variants.items():
        events, sizes = await it.sizes()
        wanted = rounds * EVENTS * (CONVERSATIONS + ALONE)
        if events != wanted:
            raise WrongError(f"{events} events are stored, {wanted} were appended")
        for what, size in sizes.items():
            if what.startswith("events"):
                report.add(f"{name}: {what}", size / events, "bytes an event")
            else:
                report.add(f"{name}: {what}", size * EVENTS / events, "bytes a session")
        report.add(f"{name}: oplog", it.oplog / events, "bytes an event")
        plain = next(iter(variants.values()))
        report_cost(report, f"{name}, {LANES} at once", it.at_once, plain.at_once)
        report_cost(report, f"{name}, alone", it.alone, plain.alone)
    for it in variants.values():
        await it.service.close()
        await it.client.close()


def report_cost(
    report: Report, name: str, samples: list[Sample], others: list[Sample]
) -> None:
    """Report what appends cost, and how much more than those of another variant."""
    for side in ("client", "server"):
        costs, before = (
            [1e6 * getattr(each, side) / len(each.calls) for each in some]
            for some in (samples, others)
        )
        more = statistics.median(a - b for a, b in zip(costs, before, strict=True))
        cost = statistics.median(costs)
        report.add(f"{name}: {side}", cost, "us an append", note=f"{more:+.1f}")
    times, before = (
        [statistics.median(each.calls) for each in some] for some in (samples, others)
    )
    more = statistics.median(a - b for a, b in zip(times, before, strict=True))
    cost = statistics.median(times)
    report.add(f"{name}: time", cost, "ms an append", note=f"{more:+.3f}")


def main() -> int:
    """Run the benchmark; the exit code."""
    arguments = circumstances.parse_arguments(
        circumstances.make_parser("sizes", __doc__)
    )
    with reporting("Sizes of conversations", arguments) as (report, mongodb):
        asyncio.run(measure(report, mongodb.uri, arguments.rounds))
    return 0
