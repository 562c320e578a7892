"""A client of the caller's that decrypts fields."""

from __future__ import annotations

import os
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.encryption_options import AutoEncryptionOpts
from support.subscriptions import SESSION, new_event

from mongo_session_service import MongoSessionService


async def test_a_client_that_decrypts_is_a_client(
    mongodb_uri: str, database: str
) -> None:
    """With automatic encryption bypassed, everything works through such a client."""
    options = AutoEncryptionOpts(
        {"local": {"key": os.urandom(96)}},
        f"{database}.keys",
        bypass_auto_encryption=True,
    )
    async with AsyncMongoClient[Any](
        mongodb_uri, auto_encryption_opts=options
    ) as client:
        service = MongoSessionService(client=client, database=database)
        session = await service.create_session(**SESSION, state={"k": 1, "app:k": 1})
        async with service.watch(**SESSION) as changes:
            await service.append_event(session, new_event("x", k=2, user_k=2))
            told = [(await anext(changes)).kind for _ in range(2)]
        stored = await service.get_session(**SESSION)
        await service.close()

    assert told == ["snapshot", "appended"]
    assert stored == session
    assert session.state == {"k": 2, "app:k": 1, "user:k": 2}
