"""The consumers search.py, memory.py and usage.py of examples: what they keep."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.adk.events import Event
from google.genai import types
from pymongo import MongoClient
from support.adk_tools import with_database
from support.subscriptions import until

from mongo_session_service import MongoSessionService
from mongo_session_service.codec import documents

EXAMPLES = Path(__file__).parents[2] / "examples"
ADA = {"app_name": "search", "user_id": "ada"}
FATES = ("stays", "deleted", "redacted", "trimmed", "expired")


@pytest.fixture(autouse=True)
def programs(mongodb_uri: str, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The programs can be imported, on the test's database."""
    monkeypatch.setenv("MONGODB_URI", with_database(mongodb_uri, database))
    monkeypatch.syspath_prepend(EXAMPLES)
    for name in ("memory", "search", "usage"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def search() -> ModuleType:
    return __import__("search")


@pytest.fixture
def memory() -> ModuleType:
    return __import__("memory")


@pytest.fixture
def usage() -> ModuleType:
    return __import__("usage")


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


async def test_forks_are_found_and_counted_once(
    search: ModuleType, usage: ModuleType, database: str, admin: MongoClient
) -> None:
    """Three forks, and a fork of one: what they have copied adds nothing."""
    said = {"content": types.UserContent("in Lisbon"), "author": "agent"}
    tokens = types.GenerateContentResponseUsageMetadata(total_token_count=120)
    async with search.service as service, search.client:
        session = await service.create_session(**ADA, session_id="s")
        await service.append_event(session, Event(**said, usage_metadata=tokens))
        key = {**ADA, "session_id": "s"}
        for number in range(3):
            fork = await service.fork_session(**key, new_session_id=f"f{number}")
        await service.append_event(fork, Event(**said, usage_metadata=tokens))
        await service.fork_session(**key | {"session_id": "f2"}, new_session_id="ff")
        await search.update()
        # One has the id of a session of before, whose end comes when it is there.
        await service.delete_session(**key | {"session_id": "f0"})
        await service.fork_session(**key, new_session_id="f0")

        await search.update()
        found = await search.search(**ADA, words="lisbon")
        where = {(it["_id"]["session_id"], it["_id"]["revision"]) for it in found}
        assert len(found) == 2
        assert where == {("s", 1), ("f2", 2)}
    async with usage.service as service:
        consumer = service.consumer("usage")
        await consumer.run(usage.count, transactional=True, until_caught_up=True)
    (row,) = admin[database].usage.find()
    assert (row["answers"], row["total_tokens"]) == (2, 240)
    assert row["_id"]["imported"] is False


def said(author: str, text: str) -> Event:
    part = (
        types.Part(text=text)
        if text
        else types.Part.from_function_call(name="tool", args={})
    )
    return Event(author=author, content=types.Content(parts=[part]))


async def test_memory_keeps_what_was_answered(
    memory: ModuleType, database: str, admin: MongoClient
) -> None:
    """Once, whoever forked it; and nothing of what is deleted, redacted or unanswered.

    A later session of a deleted one's id is remembered.
    """
    user = {"app_name": "memory", "user_id": "ada"}

    async def append(session_id: str, *log: tuple[str, str]) -> list[Event]:
        key = {**user, "session_id": session_id}
        session = await service.get_session(**key)
        session = session or await service.create_session(**key)
        return [await service.append_event(session, said(*each)) for each in log]

    async def update() -> set[tuple[str, str]]:
        consumer = service.consumer("memory")
        assert await consumer.run(memory.remember, until_caught_up=True) == 0
        return {
            (it["session_id"], it["content"]["parts"][0]["text"])
            for it in admin[database].memories.find()
        }

    async with memory.service as service, memory.client:
        asked, answered = ("user", "ask"), ("agent", "answer")
        first, *_ = await append(
            "s", asked, ("agent", ""), answered, ("user", "Porto?")
        )
        await append("gone", asked, answered)
        await service.fork_session(**user, session_id="s", new_session_id="t")
        await append("t", ("agent", "more"))
        whole = {("s", "ask"), ("s", "answer"), ("gone", "ask"), ("gone", "answer")}
        assert await update() == whole | {("t", "Porto?"), ("t", "more")}

        await service.delete_session(**user, session_id="gone")
        await service.redact_events(**user, session_id="s", event_ids=[first.id])
        await append("gone", ("user", "new"), ("agent", "begin"))
        assert await update() == {
            *(("s", "[redacted]"), ("s", "answer"), ("t", "Porto?"), ("t", "more")),
            *(("gone", "new"), ("gone", "begin")),
        }
        await memory.memory.close()


async def test_a_long_invocation_is_read_back_once(
    memory: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice the calls of tools before an answer make at most twice the events read."""
    count = 0
    decode = documents.decode_event

    def counted(*given: Any) -> Event:
        nonlocal count
        count += 1
        return decode(*given)

    monkeypatch.setattr(documents, "decode_event", counted)
    read = []
    async with memory.service as service, memory.client:
        for size in (20, 40):
            session = await service.create_session(**memory.ADA)
            for text in ("Go", *[""] * size, "Done"):
                await service.append_event(session, said("agent", text))
            consumer = service.consumer("memory")
            count = 0
            await consumer.run(memory.remember, until_caught_up=True)
            read.append(count)
        await memory.memory.close()
    assert read[1] <= 2 * read[0]
