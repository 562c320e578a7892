"""Sizes: what each collection takes on disk, and what a removal would give back.

Sessions are read once, without their state, for the numbers of an app and for what is
idle. How old events are shows a sample of them.
"""

from __future__ import annotations

from dataclasses import dataclass
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
_SAMPLE: Final = 1000
"""Events that are looked at: a share of them is off by three hundredths at most."""


@dataclass(frozen=True, slots=True)
class CollectionSize:
    """What a collection, or an app's part of it, takes."""

    collection: str
    documents: int
    bytes: int
    """On disk, as MongoDB compresses it; of an app, its share by number."""
    index_bytes: int
    average: int
    """Bytes of a document before compression."""

    @property
    def bytes_each(self) -> float:
        return (self.bytes + self.index_bytes) / max(self.documents, 1)


@dataclass(frozen=True, slots=True)
class Removable:
    """What a command would remove, about."""

    command: str
    documents: int
    bytes: int
    """Of disk, with indexes, which MongoDB uses again."""


class Sizes(NamedTuple):
    collections: list[CollectionSize]
    removable: list[Removable]


async def measure(service: MongoSessionService, app_name: str | None) -> Sizes:
    """Measure a database, or the part of it that grows with an app."""
    opened = await backends_of(service).backend()
    storage = opened.storage
    there = await server.collection_names(storage)
    rows = [await _measure(storage, each) for each in COLLECTIONS if each in there]
    sizes = {each.collection: each for each in rows}
    if not {"sessions", "events"} <= sizes.keys():
        return Sizes(rows, [])
    counts = await _count_sessions(storage, app_name)
    if app_name is not None:
        users = queries.all_user_states(app_name, None)
        counting = Query("user_states", users, then=({"$count": "n"},))
        (found,) = await storage.read(counting, patient=True)
        counts["user_states"] = found[0]["n"] if found else 0
        names = ("sessions", "events", "user_states")
        rows = [_share(sizes[it], counts[it]) for it in names if it in sizes]
    return Sizes(rows, await _removable(storage, sizes, counts, app_name))


async def _measure(storage: Storage, collection: str) -> CollectionSize:
    stats = await server.storage_stats(storage, collection)
    documents = stats["count"]
    return CollectionSize(
        collection,
        documents,
        stats["storageSize"],
        stats["totalIndexSize"],
        round(stats["size"] / max(documents, 1)),
    )


def _share(whole: CollectionSize, documents: int) -> CollectionSize:
    share = documents / max(whole.documents, 1)
    return CollectionSize(
        whole.collection,
        documents,
        round(whole.bytes * share),
        round(whole.index_bytes * share),
        whole.average,
    )


async def _count_sessions(storage: Storage, app_name: str | None) -> Document:
    """Count sessions and their events, all of them and those that are idle."""
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
    wanted = {**whose, "revision": {"$gte": 0}}
    query = Query("sessions", wanted, then=({"$group": {"_id": None, **sums}},))
    (found,) = await storage.read(query, patient=True)
    return found[0] if found else dict.fromkeys(sums, 0)


async def _removable(
    storage: Storage,
    sizes: dict[str, CollectionSize],
    counts: Document,
    app_name: str | None,
) -> list[Removable]:
    of_session, of_event = (sizes[it].bytes_each for it in ("sessions", "events"))
    found: list[Removable] = []
    app = "" if app_name is None else f" --app {app_name}"
    for days in _DAYS:
        sessions, events = counts[f"sessions_{days}"], counts[f"events_{days}"]
        size = round(sessions * of_session + events * of_event)
        command = f"prune{app} --idle-for {days}d"
        found.append(Removable(command, sessions + events, size))
    sample = await _sample_events(storage, app_name)
    for days in _DAYS:
        before = storage.clock.now() - days * _DAY
        share = sum(each < before for each in sample) / max(len(sample), 1)
        events = round(share * counts["events"])
        command = f"trim {app_name or 'APP'} --older-than {days}d"
        found.append(Removable(command, events, round(events * of_event)))
    return found


async def _sample_events(storage: Storage, app_name: str | None) -> list[float]:
    """Return the times of some events; of an app, those among as many of all apps."""
    stages: list[Document] = [
        {"$sample": {"size": _SAMPLE}},
        {"$match": {"event.timestamp": {"$type": "number"}}},
        {"$project": {"_id": "$_id.app_name", "time": "$event.timestamp"}},
    ]
    command = {
        "aggregate": f"{storage.prefix}events",
        "pipeline": stages,
        "cursor": {"batchSize": _SAMPLE},
    }
    reply = await storage.command(command, patient=True)
    sampled: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
    return [it["time"] for it in sampled if app_name in {None, it["_id"]}]
