"""What an event takes on disk: bytes in the collections and in each index.

Stores the same events in each contestant's own form, with short ids and with long ones,
and asks WiredTiger after a checkpoint; journal and oplog are not counted. Texts are of
random words, as the same text again and again would be compressed more than real ones.
Then it takes the index away that keeps events unique, and compares MongoDB's CPU for
storing them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
import uuid
from collections.abc import Sequence
from typing import Final

from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.genai import types

from benchmark.contestants import OnMongo, Ours, Place
from benchmark.rivals import AdkMongo, ByHand
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.schema.indexes import EVENT_ONCE

SESSIONS: Final = 200
EVENTS: Final = 100  # of each
WORDS: Final = 50  # of each event
VOCABULARY: Final = 4_000
ROUNDS: Final = 5
INTO: Final = 30  # sessions of each round
IDS: Final = {
    "short": ("support", "u{}", "s{}"),
    "long": ("my_company_support_agent", "auth0|65f0c1d2e3a4b5c6d7e8{:04}", "{uuid}"),
}


def conversation(chance: random.Random) -> list[Event]:
    """Events like an agent's, each with an id of its own."""
    now = time.time()
    return [
        Event(
            id=str(uuid.UUID(int=chance.getrandbits(128))),
            author="support_agent" if number % 2 else "user",
            invocation_id=f"e-{uuid.UUID(int=chance.getrandbits(128))}",
            content=types.Content(role="model", parts=[types.Part(text=text(chance))]),
            actions=EventActions(state_delta={"turn": number}),
            timestamp=now + number,
        )
        for number in range(EVENTS)
    ]


def text(chance: random.Random) -> str:
    """Random words of a small language."""
    numbers = (int(chance.paretovariate(0.6)) % VOCABULARY for _ in range(WORDS))
    return " ".join(f"{number * 2_654_435_761 % 2**32:x}"[:6] for number in numbers)


def sessions(ids: tuple[str, str, str], chance: random.Random) -> list[Session]:
    """Sessions of as many users, by the form of their ids."""
    app, user, session = ids
    return [
        Session(
            app_name=app,
            user_id=user.format(number),
            id=session.format(number, uuid=uuid.UUID(int=chance.getrandbits(128))),
        )
        for number in range(SESSIONS)
    ]


async def stored(contestant: OnMongo, ids: tuple[str, str, str]) -> None:
    """Store all sessions and their events."""
    chance = random.Random(1)  # noqa: S311  the same for each
    found = sessions(ids, chance)
    await contestant.seed_sessions(found)
    for each in found:
        await contestant.seed_events(each, conversation(chance))


async def sizes(contestant: OnMongo) -> dict[str, float]:
    """Bytes per event: of the collection of events, and of each of its indexes."""
    await contestant.client.admin.command("fsync")
    stats = await contestant.database.command("collStats", "events")
    parts = {"documents": stats["storageSize"], **stats["indexSizes"]}
    return {name: size / stats["count"] for name, size in parts.items()}


async def compare(place: Place) -> None:
    """Print the sizes of each contestant."""
    print(f"bytes on disk per event, of {SESSIONS * EVENTS:,}")
    for kind, ids in IDS.items():
        for contestant in (Ours(place), AdkMongo(place), ByHand(place)):
            await contestant.open()
            await stored(contestant, ids)
            found = await sizes(contestant)
            parts = ", ".join(f"{name} {size:.0f}" for name, size in found.items())
            total = sum(found.values())
            print(f"{kind} ids, {contestant.name}: {total:.0f} ({parts})", flush=True)
            await contestant.drop()
            await contestant.close()


async def cost_of_index(place: Place) -> None:
    """Print MongoDB's CPU per event with and without the unique index, in turns."""
    chance = random.Random(1)  # noqa: S311  the same for each
    into, events = sessions(IDS["long"], chance)[:INTO], conversation(chance)
    used: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * ROUNDS):
        contestant, is_kept = Ours(place), number % 2 == 0
        await contestant.open()
        if not is_kept:
            await contestant.database.events.drop_index(EVENT_ONCE.name)
        used[is_kept].append(await cpu_per_event(contestant, into, events))
        await contestant.drop()
        await contestant.close()
    with_it, without = min(used[True]), min(used[False])
    print(f"MongoDB's CPU per event: {with_it:.0f} us, {without:.0f} without the index")


async def cpu_per_event(
    contestant: Ours, into: Sequence[Session], events: Sequence[Event]
) -> float:
    """Microseconds of the server's to store an event, of the same in each session."""
    before = await contestant.server_cpu()
    for each in into:
        await contestant.seed_events(each, events)
    after = await contestant.server_cpu()
    if before is None or after is None:
        return float("nan")
    return (after - before) / (len(into) * len(events)) * 1e6


async def run(uri: str) -> None:
    """Measure both."""
    with tempfile.TemporaryDirectory() as directory:
        place = Place(uri, uuid.uuid4().hex[:8], directory)
        await compare(place)
        await cost_of_index(place)


def main() -> int:
    """Measure on a MongoDB of its own; the exit code."""
    argparse.ArgumentParser("scripts/bench disk", description=__doc__).parse_args()
    with EmbeddedReplicaSet() as mongodb:
        asyncio.run(run(mongodb.uri))
    return 0
