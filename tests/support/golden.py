"""A database that has everything the package stores, as a file that later ones read.

``PYTHONPATH=tests python -m support.golden 0.1.0`` writes it for a release, with its
export beside it. What a release has written is never changed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Any

from bson import json_util
from google.adk.sessions import InMemorySessionService
from google.genai import types
from pymongo import MongoClient

from mongo_session_service import Change, MongoSessionService, Subject
from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.transfer import ServiceSource, StoreSource, export, move
from support.sample_data import APPS, fill
from support.subscriptions import new_event
from support.waiting import ask

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
ADA = {"app_name": "all", "user_id": "ada"}
SEALED_APP = "sealed"
CONSUMER = "golden"
_LONG = 50 * 365 * 86_400.0
_OF_ONE_CLUSTER = {"checkpoints", "leases", "partials"}
"""Collections whose documents mean nothing in another."""


def seal(value: Any, subject: Subject) -> Any:
    """Hide what is stored of one app, without a key that could be lost."""
    if subject.app_name != SEALED_APP:
        return value
    return {"sealed": base64.b64encode(json.dumps(value).encode()).decode()}


def unseal(value: Any, subject: Subject) -> Any:
    if subject.app_name != SEALED_APP:
        return value
    return json.loads(base64.b64decode(value["sealed"]))


HOOKS: dict[str, Any] = {"before_store": seal, "after_load": unseal}


async def fill_everything(uri: str, database: str) -> None:
    """Store a session of each kind."""
    async with MongoSessionService(uri, database=database) as service:
        old = InMemorySessionService()
        await fill(old)
        async with ServiceSource(old, APPS) as source:
            await move(source, service)

        odd = {"a.b": 2**70, "$x": "\ud800", "": None, "user:city": "Turin"}
        await service.create_session(**ADA, session_id="values", state=odd)
        large = {"large": "x" * 5000, "app:n": 1}
        await service.create_session(**ADA, session_id="large", state=large)
        for name in ("details", "trimmed", "redacted", "waiting", "turn"):
            key = {**ADA, "session_id": name}
            session = await service.create_session(**key, state={"n": 0})
            for number in range(4):
                event = new_event("agent", n=number, user_n=number)
                event.content = types.ModelContent(f"Answer {number}.")
                await service.append_event(session, event)
            match name:
                case "details":
                    details: Any = {"title": "A title", "labels": {"stage": "test"}}
                    await service.update_session(**key, **details, ttl=_LONG)
                case "trimmed":
                    await service.trim_session(**key, keep_last=2)
                case "redacted":
                    ids = [session.events[1].id]
                    await service.redact_events(**key, event_ids=ids, state=True)
                case "waiting":
                    await service.append_event(session, ask("c1"))
                case "turn":
                    async with service.turn(**key) as held:
                        await service.append_event(held, new_event(n=5))
        await service.fork_session(**ADA, session_id="turn", new_session_id="fork")
        await _leave_dead_letter(service)
    async with MongoSessionService(uri, database=database, **HOOKS) as service:
        key = {"app_name": SEALED_APP, "user_id": "eve", "session_id": "s"}
        session = await service.create_session(**key, state={"secret": [1]})
        await service.append_event(session, ask("c2"))


async def _leave_dead_letter(service: MongoSessionService) -> None:
    async def handle(change: Change) -> None:
        if change.session_id == "details" and change.revision == 2:
            raise ValueError

    async with service.consumer(CONSUMER) as consumer:
        await consumer.run(handle, max_attempts=1, until_caught_up=True)


def dump(admin: MongoClient[Any], database: str) -> str:
    """Write the documents of a database, without what is of this machine alone."""
    found: dict[str, list[Any]] = {}
    for name in sorted(admin[database].list_collection_names()):
        if name not in _OF_ONE_CLUSTER:
            found[name] = [*admin[database][name].find(sort=[("_id", 1)])]
    for session in found["sessions"]:
        if ended := session.get("turn", {}).get("ended"):
            ended["host"] = "host"
    return json_util.dumps(found, json_options=json_util.CANONICAL_JSON_OPTIONS) + "\n"


def restore(admin: MongoClient[Any], database: str, file: Path) -> None:
    """Store the documents of a file."""
    for name, documents in json_util.loads(file.read_text()).items():
        if documents:
            admin[database][name].insert_many(documents)


async def write(uri: str, release: str) -> None:
    """Write the database and the export of this release."""
    await fill_everything(uri, "golden")
    with MongoClient[Any](uri) as admin:
        (GOLDEN / f"{release}.json").write_text(dump(admin, "golden"))
    async with (
        MongoSessionService(uri, database="golden", **HOOKS) as service,
        StoreSource(service) as source,
    ):
        await export(source, GOLDEN / f"{release}.jsonl")


if __name__ == "__main__":
    with EmbeddedReplicaSet() as mongodb:
        asyncio.run(write(mongodb.uri, sys.argv[1]))
