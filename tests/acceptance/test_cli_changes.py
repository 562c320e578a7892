"""The commands that change what is stored: ``set``, ``erase``, ``trim``."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.cli_runner import call, start
from support.long_sessions import left_in, store_long_session
from support.one_session import IDS

from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey
from mongo_session_service.storage.kernel import Storage

WHO = tuple(IDS.values())


async def fill(service: MongoSessionService, events: int = 2, **details: Any) -> None:
    """Create the session, with some events."""
    session = await service.create_session(**IDS, state={"user:name": "x"}, **details)
    for number in range(events):
        await service.append_event(session, Event(author=f"a{number}"))


async def test_set_changes_only_the_given_fields(
    service: MongoSessionService, at: tuple[str, ...]
) -> None:
    """Title, labels and expiry are set and removed; labels that are not named stay."""
    await fill(service, labels={"stage": "test", "team": "a"})

    def changed(*options: str) -> dict[str, Any]:
        done = call("set", *WHO, *options, "--json", *at)
        assert done.returncode == 0, done.stderr
        now: dict[str, Any] = json.loads(done.stdout)
        return now

    one = changed("--title", "Trip", "--label", "stage=done", "--ttl", "12h")
    assert (one["title"], one["ttl"]) == ("Trip", 43200)
    assert one["labels"] == {"stage": "done", "team": "a"}
    two = changed("--no-title", "--no-labels", "--label", "a=b")
    assert (two["title"], two["labels"], two["ttl"]) == (None, {"a": "b"}, 43200)
    three = changed("--expire-time", "2100-01-01T00:00:00Z")
    assert (three["ttl"], three["expire_time"]) == (None, 4102444800)
    four = changed("--no-expiry", "--no-labels")
    assert (four["expire_time"], four["labels"], four["revision"]) == (None, {}, 2)
    text = call("set", *WHO, "--title", "\x1b[31mx", *at)
    assert text.stderr == "Session s: title '\\\\x1b[31mx'; no labels; no expiry.\n"


async def test_an_interrupted_erasure_is_resumed(
    service: MongoSessionService,
    at: tuple[str, ...],
    admin: MongoClient,
    database: str,
) -> None:
    """Ctrl-C ends it after a step, and it says to run it again, which does the rest."""
    await store_long_session(service, admin, database, SessionKey(*WHO), 2500)
    erasing = ("erase", *WHO, *at)
    with admin.start_session() as txn, txn.start_transaction():
        # It has to wait for this.
        touched = {"$set": {"steps": 1}}
        admin[database].sessions.update_one({"_id": IDS}, touched, session=txn)
        process = await asyncio.to_thread(start, *erasing, "--yes")
        assert process.stderr is not None
        begun = await asyncio.to_thread(process.stderr.readline)
        process.send_signal(signal.SIGINT)
        txn.abort_transaction()
    _, said = await asyncio.to_thread(process.communicate)
    left = left_in(admin, database)

    again = call(*erasing, "--yes")

    assert b"1 session, 2,500 events." in begun
    assert process.returncode == 130
    assert said == b"Interrupted: a part may be erased. Run it again for the rest.\n"
    assert left["events"] > 0
    assert again.returncode == 0
    assert left_in(admin, database) == {"sessions": 0, "events": 0}


async def test_the_rest_of_an_interrupted_erasure_is_erased(
    service: MongoSessionService,
    at: tuple[str, ...],
    admin: MongoClient,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session that nobody is shown any more is erased to its end."""
    await store_long_session(service, admin, database, SessionKey(*WHO), 1500)

    def stop(*_: object, **__: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "remove", stop)
        with pytest.raises(RuntimeError):
            await service.delete_session(**IDS)
    assert left_in(admin, database) == {"sessions": 1, "events": 1500}

    done = call("erase", *WHO, "--yes", *at)

    assert "Erased what an interrupted erasure had left of session" in done.stderr
    assert left_in(admin, database) == {"sessions": 0, "events": 0}


def test_setup_names_each_collection_and_index_that_it_creates(
    at: tuple[str, ...], admin: MongoClient
) -> None:
    """A second run creates nothing; an index that cannot be created is exit code 3."""
    first, again = call("setup", *at), call("setup", "--json", *at)
    sessions = admin[at[-1]].sessions
    sessions.drop_index("by_user")
    one = call("setup", "--json", *at)
    sessions.drop_index("by_user")
    sessions.create_index("x", name="by_user")
    kept = call("setup", "--json", *at)

    assert "Created collections: app_states, " in first.stderr
    assert "Created indexes: events.event_id_once_per_session, " in first.stderr
    assert first.stderr.endswith("schema version 1.\n")
    nothing = {"collections": [], "indexes": [], "missing_indexes": []}
    assert json.loads(again.stdout) == {**nothing, "schema_version": 1}
    assert json.loads(one.stdout)["indexes"] == ["sessions.by_user"]
    assert json.loads(kept.stdout)["missing_indexes"] == ["sessions.by_user"]
    assert [each.returncode for each in (first, again, one, kept)] == [0, 0, 0, 3]


def test_a_dry_setup_names_what_it_would_create(
    at: tuple[str, ...], admin: MongoClient
) -> None:
    """It creates nothing, and is not a failure."""
    new = (*at[:-1], f"{at[-1]}_new")
    everything = call("setup", "--dry-run", *new)
    call("setup", *at)
    admin[at[-1]].sessions.drop_index("by_user")
    one = call("setup", "--dry-run", "--json", *at)

    assert "Would create collections: app_states, " in everything.stderr
    assert (
        "Would create indexes: events.event_id_once_per_session, " in everything.stderr
    )
    assert admin[new[-1]].list_collection_names() == []
    assert json.loads(one.stdout) == {
        "collections": [],
        "indexes": ["sessions.by_user"],
        "missing_indexes": ["sessions.by_user"],
        "schema_version": 1,
    }
    assert [each.returncode for each in (everything, one)] == [0, 0]
