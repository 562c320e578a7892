"""Connections that were opened to a member while it was starting."""

from __future__ import annotations

from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import ConfigurationError, PyMongoError


def is_starting(error: PyMongoError) -> bool:
    """Whether it was asked of a connection to a member that was not ready.

    The driver remembers of a connection what the member said when it was opened. One
    that is starting, after a crash for example, does not know sessions yet, and the
    driver takes that for the whole deployment's.
    """
    is_config = isinstance(error, ConfigurationError)
    return is_config and str(error).startswith("Sessions are not supported")


async def renew_connections(client: Any) -> None:
    """Have the driver use none of its connections again, but for what is under way.

    It keeps those to a member that was starting when that has become the primary, and
    every call would meet the same one. To end cursors, it connects to any member.
    """
    asynchronous = isinstance(client, AsyncMongoClient)
    topology = (client if asynchronous else client.delegate)._topology  # noqa: SLF001
    for server in list(topology._servers.values()):  # noqa: SLF001
        resetting = server.pool.reset_without_pause()
        if asynchronous:
            await resetting
