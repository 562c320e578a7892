"""Inboxes: the delivery of one change stream to its subscriptions."""

from __future__ import annotations

import logging

from mongo_session_service.changes.routing import Router
from mongo_session_service.errors import HistoryLostError, SlowSubscriberError
from mongo_session_service.feed.inbox import RESYNC, Inbox, Notification
from mongo_session_service.feed.stats import Counters

logger = logging.getLogger(__name__)


class Inboxes:
    """The inboxes that receive the changes of one stream."""

    def __init__(self, counters: Counters) -> None:
        self.router: Router[Inbox] = Router()
        self._counters = counters

    def deliver(self, inbox: Inbox, notification: Notification) -> None:
        """Put a notification into an inbox; end one that is full."""
        try:
            has_room = inbox.is_over or inbox.put(notification)
        except RuntimeError:  # its loop is closed
            has_room = True
        if not has_room:
            self._counters.drops += 1
            inbox.clear()
            inbox.end(SlowSubscriberError(None))
        if inbox.is_over:
            self.router.detach(inbox)

    def detach_ended(self) -> None:
        """Detach what has ended, or was left open in an event loop that is closed."""
        for each in self.router:
            if each.is_over:
                self.router.detach(each)

    def resynchronise(self, error: HistoryLostError) -> None:
        """Have session subscriptions read from storage, and end all others."""
        logger.warning("The change feed restarts. %s", error)
        self._counters.resyncs += 1
        for each in self.router:
            if each.scope.is_session:
                each.clear()
                self.deliver(each, RESYNC)
            else:
                each.end(error)
        self.detach_ended()

    def end_all(self, error: Exception | None) -> None:
        """End all inboxes."""
        for each in self.router:
            each.end(error)
        self.detach_ended()
