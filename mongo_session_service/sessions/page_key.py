"""The key that page tokens are sealed with: one for each database, kept in it."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import Any, Final

from pymongo.errors import DuplicateKeyError

from mongo_session_service.driver.connection import Connection

_ID: Final = {"_id": "page_tokens"}


async def load_page_key(connection: Connection) -> bytes:
    """The key, made by whoever asks first."""
    metadata = connection.metadata
    found: dict[str, Any] | None = await metadata.find_one(_ID)
    while found is None:
        with suppress(DuplicateKeyError):  # another was faster
            await metadata.insert_one({**_ID, "key": secrets.token_bytes(32)})
        found = await metadata.find_one(_ID)
    return bytes(found["key"])
