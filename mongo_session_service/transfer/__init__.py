"""Moving sessions in and out, and the proof that nothing was lost.

::

    async with SqlSource("postgresql://me@db/adk") as source:
        moved = await move(source, service)
        verified = await verify(source, StoreSource(service))
"""

from __future__ import annotations

from mongo_session_service.errors import ConflictError, SourceError, TransferError

from .exporter import Exported, export
from .importer import move
from .moved import Moved, Policies
from .records import EVERYTHING, Problem, Selection, Source
from .replay import HandedOver, hand_over
from .sources.adk_mongodb import AdkMongoDbSource
from .sources.adk_sql import SqlSource
from .sources.adk_sqlite import SqliteSource
from .sources.extra_services import ExtraServicesSource
from .sources.jsonl import JsonLinesSource
from .sources.session_service import ServiceSource
from .sources.store import StoreSource
from .verifier import Verified, verify

__all__ = [
    "EVERYTHING",
    "AdkMongoDbSource",
    "ConflictError",
    "Exported",
    "ExtraServicesSource",
    "HandedOver",
    "JsonLinesSource",
    "Moved",
    "Policies",
    "Problem",
    "Selection",
    "ServiceSource",
    "Source",
    "SourceError",
    "SqlSource",
    "SqliteSource",
    "StoreSource",
    "TransferError",
    "Verified",
    "export",
    "hand_over",
    "move",
    "verify",
]
