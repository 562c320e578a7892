"""A Google ADK session service that keeps sessions in MongoDB."""

from __future__ import annotations

from .errors import (
    ConfigurationError,
    DocumentTooLargeError,
    InvalidInputError,
    MongoSessionServiceError,
    SchemaVersionError,
    StorageError,
    StorageUnavailableError,
)
from .service import MongoSessionService
from .version import __version__

__all__ = [
    "ConfigurationError",
    "DocumentTooLargeError",
    "InvalidInputError",
    "MongoSessionService",
    "MongoSessionServiceError",
    "SchemaVersionError",
    "StorageError",
    "StorageUnavailableError",
    "__version__",
]
