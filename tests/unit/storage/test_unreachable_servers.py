"""How long the first call waits where nobody listens on this machine."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.errors import ServerSelectionTimeoutError

from mongo_session_service.storage import server

NOWHERE = "mongodb://127.0.0.1:1/"


@pytest.mark.parametrize(
    ("options", "waited"), [("", False), ("?serverSelectionTimeoutMS=300", True)]
)
async def test_a_time_in_the_uri_is_kept(
    monkeypatch: pytest.MonkeyPatch, options: str, *, waited: bool
) -> None:
    """Without one it waits less than the driver would; the driver names its own."""
    monkeypatch.setattr(server, "_LOCAL_PATIENCE", 0.0)
    client: AsyncMongoClient[Any] = AsyncMongoClient(NOWHERE + options)

    with pytest.raises(ServerSelectionTimeoutError) as caught:
        await server.ask_hello(client)

    assert ("Timeout: 0.3s" in str(caught.value)) is waited
    await client.close()
