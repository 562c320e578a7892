"""A Google ADK session service that keeps sessions in MongoDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mongo_session_service._version import __version__
from mongo_session_service.errors import (
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
    TrimmedError,
    UnknownOutcomeError,
)

if TYPE_CHECKING:
    from mongo_session_service.changes.change import Change
    from mongo_session_service.codec.hooks import Hook, Subject
    from mongo_session_service.consumers.checkpoint import ConsumerStatus
    from mongo_session_service.consumers.consumer import Consumer
    from mongo_session_service.consumers.dead_letters import DeadLetter
    from mongo_session_service.consumers.handler import Handler
    from mongo_session_service.feed.stats import FeedStats
    from mongo_session_service.feed.subscription import Subscription
    from mongo_session_service.model.records import SessionKey
    from mongo_session_service.model.results import (
        Branch,
        Erased,
        Pruned,
        SessionPage,
        SessionSummary,
        TurnInfo,
        UserEvent,
        WaitingCall,
    )
    from mongo_session_service.service import MongoSessionService
    from mongo_session_service.turns.running_turns import RunningTurn
else:
    import importlib.util
    import sys
    import threading

    # Two threads that import parts of ADK in different orders may deadlock.
    _one_at_a_time = threading.RLock()

    # Modules of those names that service.py does not import.
    _HOMES = {
        "Change": "changes.change",
        "DeadLetter": "consumers.dead_letters",
        "Handler": "consumers.handler",
        "Subject": "codec.hooks",
        "WaitingCall": "model.results",
    }

    def __getattr__(name: str) -> object:
        """Import a name, or a module of the package, when it is first used.

        ADK takes a second to import: the command line often does without it.
        """
        if name in __all__:
            with _one_at_a_time:
                module = _HOMES.get(name, "service")
                home = importlib.import_module(f"{__name__}.{module}")
            globals()[name] = getattr(home, name)
            return globals()[name]
        may_be_module = name.isidentifier() and not name.startswith("_")
        if may_be_module and importlib.util.find_spec(f"{__name__}.{name}"):
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}",
            name=name,
            obj=sys.modules[__name__],
        )

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Branch",
    "Change",
    "ConfigurationError",
    "Consumer",
    "ConsumerStatus",
    "DeadLetter",
    "DocumentTooLargeError",
    "Erased",
    "FeedStats",
    "Handler",
    "HistoryLostError",
    "Hook",
    "InvalidInputError",
    "LeaseLostError",
    "MongoSessionService",
    "MongoSessionServiceError",
    "NotAuthorizedError",
    "Pruned",
    "RunningTurn",
    "SchemaVersionError",
    "SessionKey",
    "SessionPage",
    "SessionSummary",
    "SlowSubscriberError",
    "StorageError",
    "StorageUnavailableError",
    "Subject",
    "Subscription",
    "TrimmedError",
    "TurnInfo",
    "UnknownOutcomeError",
    "UserEvent",
    "WaitingCall",
    "__version__",
]
