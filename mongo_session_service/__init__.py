"""A Google ADK session service that keeps sessions in MongoDB."""

from __future__ import annotations

from .changes.change import Change
from .changes.consumers import Consumer
from .changes.dead_letters import DeadLetter
from .changes.roster import ConsumerStatus
from .changes.stats import FeedStats
from .changes.subscriptions import Subscription
from .erasing import Erased
from .errors import (
    ConfigurationError,
    DocumentTooLargeError,
    HistoryLostError,
    InvalidInputError,
    LeaseLostError,
    MongoSessionServiceError,
    NotAuthorizedError,
    SchemaVersionError,
    SlowSubscriberError,
    StorageError,
    StorageUnavailableError,
    UnknownOutcomeError,
)
from .histories import UserEvent
from .hooks import Subject
from .service import MongoSessionService
from .summaries import SessionPage, SessionSummary
from .upkeep import Pruned
from .version import __version__

__all__ = [
    "Change",
    "ConfigurationError",
    "Consumer",
    "ConsumerStatus",
    "DeadLetter",
    "DocumentTooLargeError",
    "Erased",
    "FeedStats",
    "HistoryLostError",
    "InvalidInputError",
    "LeaseLostError",
    "MongoSessionService",
    "MongoSessionServiceError",
    "NotAuthorizedError",
    "Pruned",
    "SchemaVersionError",
    "SessionPage",
    "SessionSummary",
    "SlowSubscriberError",
    "StorageError",
    "StorageUnavailableError",
    "Subject",
    "Subscription",
    "UnknownOutcomeError",
    "UserEvent",
    "__version__",
]
