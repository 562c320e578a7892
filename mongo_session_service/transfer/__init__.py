"""Moving sessions in and out, and the proof that nothing was lost.

::

    async with SqlSource("postgresql://me@db/adk") as source:
        moved = await move(source, service)
        verified = await verify(source, StoreSource(service))
"""

from __future__ import annotations

from mongo_session_service.errors import ConflictError, SourceError, TransferError

from .export import Exported, export
from .handover import HandedOver, hand_over
from .items import EVERYTHING, Problem, Selection, Source
from .move import move
from .moved import Moved, Policies
from .sources.adk_mongodb import AdkMongoDbSource
from .sources.extra_services import ExtraServicesSource
from .sources.jsonl import JsonLinesSource
from .sources.service import ServiceSource
from .sources.sql import SqlSource
from .sources.sqlite import SqliteSource
from .sources.stored import StoreSource
from .verify import Verified, verify

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
