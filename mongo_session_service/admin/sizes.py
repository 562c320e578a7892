"""Sizes: what each collection takes on disk, and what a removal would give back.

Sessions are read once, without their state, for the numbers of an app and for what is
idle. How old events are shows a sample of them.
"""

from __future__ import annotations

import shlex
from typing import Any, Final, NamedTuple

from mongo_session_service.model.records import Document
from mongo_session_service.schema.setup import COLLECTIONS
from mongo_session_service.service import MongoSessionService, backends_of
from mongo_session_service.sessions import queries
from mongo_session_service.storage import server
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query

_DAYS: Final = (30, 90, 365)
_DAY: Final = 86_400.0  # seconds
_STORED: Final[Document] = {"revision": {"$gte": 0}}
_SAMPLE: Final = 1000
"""Events that are looked at: a share of them is off by three hundredths at most."""


class CollectionSize(NamedTuple):
    """What a collection takes, or a part of it."""

    collection: str
    documents: int
    bytes: int
    """On disk, compressed; of a part, its share by number."""
    index_bytes: int
    average: int
    """Bytes of a document before compression."""

    def part(self, documents: int) -> CollectionSize:
        share = documents / max(self.documents, 1)
        size, indexes = round(self.bytes * share), round(self.index_bytes * share)
        return self._replace(documents=documents, bytes=size, index_bytes=indexes)


class Removable(NamedTuple):
    """What a command would remove, about."""

    command: str
    documents: int
    bytes: int
    """Of disk, with indexes, which MongoDB uses again."""


async def measure(
    service: MongoSessionService, app_name: str | None
) -> tuple[list[CollectionSize], list[Removable]]:
    """Measure a database, or the part of it that grows with an app."""
    storage = await backends_of(service).storage()
    sizes: dict[str, CollectionSize] = {}
    there = await server.collection_names(storage)
    for name in COLLECTIONS:
        if name in there:
            stats = await server.storage_stats(storage, name)
            taken = stats["storageSize"], stats["totalIndexSize"]
            average = round(stats["size"] / max(stats["count"], 1))
            sizes[name] = CollectionSize(name, stats["count"], *taken, average)
    if not {"sessions", "events", "user_states"} <= sizes.keys():
        return [*sizes.values()], []
    counts = await _count(storage, app_name)
    app = "APP" if app_name is None else shlex.quote(app_name)
    of_app = "" if app_name is None else f" --app {app}"
    names = ("sessions", "events")
    found = []
    for days in _DAYS:
        parts = [sizes[name].part(counts[f"{name}_{days}"]) for name in names]
        found.append(_removable(f"prune{of_app} --idle-for {days}d", parts))
    times = await _sample_times(storage, app_name)
    for days in _DAYS:
        old = sum(each < storage.clock.now() - days * _DAY for each in times)
        part = sizes["events"].part(round(counts["events"] * old / max(len(times), 1)))
        command = f"trim {app} --older-than {days}d"
        found.append(_removable(command, [part]))
    if app_name is not None:
        grow = (*names, "user_states")
        return [sizes[each].part(counts[each]) for each in grow], found
    return [*sizes.values()], found


async def _count(storage: Storage, app_name: str | None) -> Document:
    """Count sessions, their events and users; and the idle sessions, by days."""
    sums: Document = {"sessions": {"$sum": 1}, "events": {"$sum": queries.LENGTH}}
    for days in _DAYS:
        is_idle = {
            "$and": [
                {"$lte": ["$update_time", storage.clock.now() - days * _DAY]},
                # Others are removed when they expire.
                {"$eq": [{"$type": "$expire_time"}, "missing"]},
            ]
        }
        for name, value in (("sessions", 1), ("events", queries.LENGTH)):
            sums[f"{name}_{days}"] = {"$sum": {"$cond": [is_idle, value, 0]}}
    whose = {} if app_name is None else queries.all_sessions(app_name, None)
    logged, users = await storage.read(
        Query("sessions", whose | _STORED, then=({"$group": {"_id": None, **sums}},)),
        Query("user_states", whose, then=({"$count": "user_states"},)),
        patient=True,
    )
    none = dict.fromkeys((*sums, "user_states"), 0)
    return none | (logged[0] if logged else {}) | (users[0] if users else {})


def _removable(command: str, parts: list[CollectionSize]) -> Removable:
    documents = sum(each.documents for each in parts)
    size = sum(each.bytes + each.index_bytes for each in parts)
    return Removable(command, documents, size)


async def _sample_times(storage: Storage, app_name: str | None) -> list[float]:
    """Return the times of some events; of an app, those among as many of all apps."""
    command = {
        "aggregate": f"{storage.prefix}events",
        "pipeline": [
            {"$sample": {"size": _SAMPLE}},
            {"$match": {"event.timestamp": {"$type": "number"}}},
            {"$project": {"_id": "$_id.app_name", "time": "$event.timestamp"}},
        ],
        "cursor": {"batchSize": _SAMPLE},
    }
    reply = await storage.command(command, patient=True)
    sampled: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
    return [it["time"] for it in sampled if app_name in {None, it["_id"]}]
