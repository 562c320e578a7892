"""What an append without a session in hand reads."""

from __future__ import annotations

from typing import Any

from google.adk.events import Event
from pymongo import AsyncMongoClient, monitoring
from support.command_log import QuietListener
from support.one_session import IDS, authors, read
from support.subscriptions import new_event

from mongo_session_service import MongoSessionService


class Replies(QuietListener):
    """Keeps the documents that the server has replied with."""

    def __init__(self) -> None:
        self.documents: list[Any] = []

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        self.documents += event.reply.get("cursor", {}).get("firstBatch", ())


async def test_an_append_without_a_session_loads_neither_history_nor_state(
    mongodb_uri: str, database: str
) -> None:
    """The session's last event is read, without state, however long the session is."""
    replies = Replies()
    async with AsyncMongoClient(mongodb_uri, event_listeners=[replies]) as client:
        service = MongoSessionService(client=client, database=database)
        session = await service.create_session(**IDS, state={"large": "x" * 5000})
        for number in range(5):
            await service.append_event(session, new_event(f"a{number}", n=number))
        replies.documents.clear()

        await service.append(**IDS, event=Event(author="hook"))

        events = [each for each in replies.documents if "event" in each]
        assert [each["event"]["author"] for each in events] == ["a4"]
        assert not any("state" in each for each in replies.documents)
        assert authors(await read(service))[-2:] == ["a4", "hook"]
