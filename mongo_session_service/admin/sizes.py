"""Sizes: what each collection takes on disk."""

from __future__ import annotations

from typing import Final, NamedTuple

from mongo_session_service.model.records import Document
from mongo_session_service.schema.setup import COLLECTIONS, existing
from mongo_session_service.service import MongoSessionService, backends_of
from mongo_session_service.sessions import queries
from mongo_session_service.storage import server
from mongo_session_service.storage.statements import Query

_STORED: Final[Document] = {"revision": {"$gte": 0}}


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


async def measure(
    service: MongoSessionService, app_name: str | None
) -> list[CollectionSize]:
    """Measure a database, or the part of it that grows with an app."""
    storage = await backends_of(service).storage()
    there = await existing(storage)
    sizes: dict[str, CollectionSize] = {}
    for name in COLLECTIONS:
        if name in there:
            stats = await server.storage_stats(storage, name)
            taken = stats["storageSize"], stats["totalIndexSize"]
            average = round(stats["size"] / max(stats["count"], 1))
            sizes[name] = CollectionSize(name, stats["count"], *taken, average)
    if app_name is None:
        return [*sizes.values()]
    whose = queries.all_sessions(app_name, None)
    stored, users = await storage.read(
        Query("sessions", whose | _STORED, then=(queries.COUNT_STAGE,)),
        Query("user_states", whose, then=({"$count": "user_states"},)),
        patient=True,
    )
    counts = {name: it for found in (*stored, *users) for name, it in found.items()}
    return [
        sizes[name].part(counts.get(name, 0))
        for name in ("sessions", "events", "user_states")
        if name in sizes
    ]
