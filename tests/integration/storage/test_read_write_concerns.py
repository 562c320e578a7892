"""What a client's read and write concerns come to."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.monitoring import (
    CommandStartedEvent,
)
from support.command_log import QuietListener
from support.subscriptions import SESSION, new_event

from mongo_session_service import MongoSessionService


class Commands(QuietListener):
    """What a client has sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.sent.append(dict(event.command))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [each for each in self.sent if name in each]


@pytest.mark.parametrize(
    ("options", "concern", "told"),
    [
        ("appName=x", {"w": "majority"}, None),
        ("w=majority", {"w": "majority"}, None),
        ("w=majority&journal=true", {"w": "majority", "j": True}, None),
        ("w=1", {"w": "majority"}, "w=1"),
        ("w=3", {"w": "majority"}, "w=3"),
        ("w=0", {"w": "majority"}, "w=0"),
        ("journal=false", {"w": "majority"}, "j=False"),
        ("wtimeoutMS=50&w=majority", {"w": "majority"}, "wtimeout=50"),
        ("readConcernLevel=linearizable", {"w": "majority"}, "linearizable"),
        ("readConcernLevel=local", {"w": "majority"}, None),
        ("readPreference=primary", {"w": "majority"}, None),
        ("readPreference=nearest", {"w": "majority"}, "nearest"),
    ],
)
async def test_each_write_waits_for_a_majority(
    mongodb_uri: str,
    database: str,
    options: str,
    concern: dict[str, Any],
    told: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Other read and write concerns are overruled, with one warning."""
    commands = Commands()
    with caplog.at_level(logging.WARNING, "mongo_session_service"):
        async with AsyncMongoClient[Any](
            f"{mongodb_uri}&{options}", event_listeners=[commands]
        ) as client:
            service = MongoSessionService(client=client, database=database)
            session = await service.create_session(**SESSION)
            await service.append_event(session, new_event("x", k=1))
            assert await service.get_session(**SESSION) == session
            await service.close()

    (commit,) = commands.named("commitTransaction")
    (created,) = (
        each for each in commands.named("insert") if each["insert"] == "sessions"
    )
    assert commit["writeConcern"] == concern
    assert created["writeConcern"] == concern
    read = commands.named("aggregate")[-1]
    assert read["readConcern"] == {"level": "snapshot"}
    assert "$readPreference" not in read
    assert len(caplog.messages) == (0 if told is None else 1)
    assert (told or "") in caplog.text
