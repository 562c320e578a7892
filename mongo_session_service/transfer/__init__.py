"""Transfer: import, export and verification of sessions.

::

    async with SqlSource("postgresql://me@db/adk") as source:
        moved = await move(source, service)
        verified = await verify(source, StoreSource(service))
"""

from __future__ import annotations

from mongo_session_service.errors import ConflictError, SourceError, TransferError
from mongo_session_service.transfer.export_file import (
    Exported,
    JsonLinesSource,
    export,
)
from mongo_session_service.transfer.handover import HandedOver, hand_over
from mongo_session_service.transfer.importer import move
from mongo_session_service.transfer.source_items import (
    EVERYTHING,
    Moved,
    Policies,
    Problem,
    Selection,
    Source,
)
from mongo_session_service.transfer.sources.adk_mongodb import AdkMongoDbSource
from mongo_session_service.transfer.sources.adk_sql import SqliteSource, SqlSource
from mongo_session_service.transfer.sources.service_source import ServiceSource
from mongo_session_service.transfer.sources.store_source import StoreSource
from mongo_session_service.transfer.verifier import Verified, verify

__all__ = [
    "EVERYTHING",
    "AdkMongoDbSource",
    "ConflictError",
    "Exported",
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
