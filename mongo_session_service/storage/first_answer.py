"""A first answer of MongoDB, for who would rather fail than wait."""

from __future__ import annotations

import pymongo

from mongo_session_service.storage.retries import ErrorTranslation
from mongo_session_service.storage.server import ask_hello
from mongo_session_service.storage.uri import open_client


async def require_answer(uri: str, limit: float) -> None:
    """Require an answer within seconds, unless the URI sets a time of its own."""
    client = open_client(uri)
    has_own_time = "serverselectiontimeoutms" in uri.lower()
    async with ErrorTranslation(client):
        try:
            with pymongo.timeout(None if has_own_time else limit):
                await ask_hello(client)
        finally:
            await client.close()
