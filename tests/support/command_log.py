"""What a driver sends to the server."""

from __future__ import annotations

from pymongo import monitoring


class CommandsSent(monitoring.CommandListener):
    """Keeps the names of the commands a client has sent, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Keep it."""
        self.names.append(event.command_name)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Of no interest."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Of no interest."""
