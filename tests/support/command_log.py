"""What a driver sends to the server."""

from __future__ import annotations

from typing import Any

from pymongo import monitoring


class CommandsSent(monitoring.CommandListener):
    """Keeps the commands a client has sent, in order."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        """The name and the content of each."""

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [name for name, _ in self.sent]

    def clear(self) -> None:
        """Forget them."""
        self.sent.clear()

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Keep it."""
        self.sent.append((event.command_name, dict(event.command)))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Of no interest."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Of no interest."""
