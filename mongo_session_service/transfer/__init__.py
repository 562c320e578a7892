"""Transfer: import, export and verification of sessions.

::

    async with SqlSource("postgresql://me@db/adk") as source:
        moved = await move(source, service)
        verified = await verify(source, StoreSource(service))
"""

from __future__ import annotations

from mongo_session_service.errors import ConflictError, SourceError, TransferError
from mongo_session_service.transfer.adk_sources import (
    AdkMongoDbSource,
    SqliteSource,
    SqlSource,
)
from mongo_session_service.transfer.comparison import Verified, verify
from mongo_session_service.transfer.export_file import (
    Exported,
    JsonLinesSource,
    export,
)
from mongo_session_service.transfer.importer import Moved, Policies, move
from mongo_session_service.transfer.sources import (
    EVERYTHING,
    Problem,
    Selection,
    ServiceSource,
    Source,
    StoreSource,
)

__all__ = [
    "EVERYTHING",
    "AdkMongoDbSource",
    "ConflictError",
    "Exported",
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
    "move",
    "verify",
]
