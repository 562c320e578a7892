"""The program examples/search.py finds what is stored, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from google.adk.events import Event
from google.genai import types
from pymongo import MongoClient
from support.adk_tools import with_database
from support.subscriptions import until

from mongo_session_service import MongoSessionService

EXAMPLES = Path(__file__).parents[2] / "examples"
ADA = {"app_name": "search", "user_id": "ada"}
FATES = ("stays", "deleted", "redacted", "trimmed", "expired")


@pytest.fixture
def search(
    mongodb_uri: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    """The program, on the test's database."""
    monkeypatch.setenv("MONGODB_URI", with_database(mongodb_uri, database))
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.delitem(sys.modules, "search", raising=False)
    return __import__("search")


async def tell(service: MongoSessionService, session_id: str, text: str) -> None:
    """Have a session begin with a text, after which another follows."""
    session = await service.create_session(**ADA, session_id=session_id)
    for each in (text, "And then?"):
        event = Event(author="ada", content=types.UserContent(each))
        await service.append_event(session, event)


async def test_the_search_index_drops_removed_text(
    search: ModuleType, database: str, admin: MongoClient
) -> None:
    """Deleted, redacted, trimmed or expired: no document has the text any more.

    A user does not find another's, and what a later session of the id says is found.
    """
    async with search.service as service, search.client:
        for fate in FATES:
            await tell(service, fate, f"secret {fate}")
        await search.update()
        texts = admin[database].texts
        assert {each["text"] for each in texts.find()} == {
            *(f"secret {fate}" for fate in FATES),
            "And then?",
        }

        await service.delete_session(**ADA, session_id="deleted")
        session = {**ADA, "session_id": "redacted"}
        _, event = await anext(service.iter_events(**session))
        await service.redact_events(**session, event_ids=[event.id])
        await service.trim_session(**ADA, session_id="trimmed", keep_last=1)
        await service.update_session(**ADA, session_id="expired", ttl=0.1)
        sessions = admin[database].sessions
        await until(lambda: not sessions.find_one({"_id.session_id": "expired"}))
        await tell(service, "deleted", "nothing of the kind")
        await search.update()

        left = {(it["_id"]["session_id"], it["text"]) for it in texts.find()}
        assert left == {
            ("stays", "secret stays"),
            ("deleted", "nothing of the kind"),
            *((fate, "And then?") for fate in FATES if fate != "expired"),
        }
        (found,) = await search.search(**ADA, words="secret")
        assert found["text"] == "secret stays"
        assert await search.search("search", "eve", words="secret") == []
