"""What a driver sends to the server."""

from __future__ import annotations

from typing import Any

import bson
from pymongo import monitoring


class QuietListener(monitoring.CommandListener):
    """Does nothing, until a subclass does."""

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Do nothing."""

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Do nothing."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Do nothing."""


class CommandsSent(QuietListener):
    """Keeps the commands a client has sent, in order."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        """The name and the content of each."""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.sent]

    def clear(self) -> None:
        self.sent.clear()

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.sent.append((event.command_name, dict(event.command)))


class BytesReceived(QuietListener):
    """Adds up the replies that a client has received."""

    def __init__(self) -> None:
        self.bytes = 0

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        self.bytes += len(bson.encode(event.reply))
