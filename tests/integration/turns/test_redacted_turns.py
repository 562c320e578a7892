"""What an agent has just said in a running turn is redacted, its pieces as well."""

from __future__ import annotations

from typing import Any

from pymongo import MongoClient
from support.conversations import start
from support.encryption_hooks import CANARY
from support.raw_search import traces_of
from support.spoken_model import SpokenModel
from support.subscriptions import until

from mongo_session_service import MongoSessionService

IDS = {"app_name": "app", "user_id": "user", "session_id": "s"}


async def test_the_pieces_of_a_redacted_event_are_nowhere(
    service: MongoSessionService, admin: MongoClient[Any], database: str
) -> None:
    """Neither while its turn goes on, nor after its end; the next answer is heard."""
    model = SpokenModel()
    await service.create_session(**IDS)
    running = await start(service, model)
    model.say(f"{CANARY} ", CANARY, thought=True)
    model.say(f"{CANARY} ", CANARY)
    await until(lambda: "partials" in traces_of(CANARY, admin, database))
    model.end_answer()
    await running.result()
    *_, (_, answer) = [it async for it in service.iter_events(**IDS)]
    assert CANARY in str(answer)
    await service.redact_events(**IDS, event_ids=[answer.id])
    assert traces_of(CANARY, admin, database) == []
