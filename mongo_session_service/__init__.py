"""A Google ADK session service that keeps sessions in MongoDB."""

from __future__ import annotations

from .changes.change import Change
from .changes.stats import FeedStats
from .changes.subscriptions import Subscription
from .errors import (
    ConfigurationError,
    DocumentTooLargeError,
    HistoryLostError,
    InvalidInputError,
    LeaseLostError,
    MongoSessionServiceError,
    SchemaVersionError,
    SlowSubscriberError,
    StorageError,
    StorageUnavailableError,
)
from .service import MongoSessionService
from .version import __version__

__all__ = [
    "Change",
    "ConfigurationError",
    "DocumentTooLargeError",
    "FeedStats",
    "HistoryLostError",
    "InvalidInputError",
    "LeaseLostError",
    "MongoSessionService",
    "MongoSessionServiceError",
    "SchemaVersionError",
    "SlowSubscriberError",
    "StorageError",
    "StorageUnavailableError",
    "Subscription",
    "__version__",
]
