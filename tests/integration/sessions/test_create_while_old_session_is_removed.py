"""Ids of new sessions while old sessions with these ids are being removed."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events import Event
from pymongo import MongoClient
from support.long_sessions import event, left_in

from mongo_session_service import MongoSessionService
from mongo_session_service.model.records import SessionKey
from mongo_session_service.sessions import deletion
from mongo_session_service.storage.kernel import Storage

KEY = SessionKey("app", "user", "s")
TOMBSTONE = {"_id": KEY.id, "expire_time": 0.0, "steps": 0}


@pytest.mark.parametrize("make", ["create", "fork"])
async def test_an_id_freed_by_another_caller_is_free(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
    make: str,
) -> None:
    """A caller that finds a tombstone, which another one removes, continues."""
    other = KEY._replace(session_id="other")
    await service.create_session(**other.id)
    admin[database].sessions.insert_one({**TOMBSTONE})
    remove_some = deletion.remove_some

    async def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(deletion, "remove_some", remove_some)
        await service.prune()
        async for step in remove_some(*arguments, **options):
            yield step

    monkeypatch.setattr(deletion, "remove_some", late)
    if make == "create":
        await service.create_session(**KEY.id)
    else:
        await service.fork_session(**other.id, new_session_id=KEY.session_id)

    assert await service.get_session(**KEY.id) is not None


async def test_events_without_session_are_not_those_of_a_new_one(
    service: MongoSessionService,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session that is made while its user is erased is erased whole, or not."""
    admin[database].events.insert_one(event(KEY, 1))
    orphans = deletion._find_orphans  # noqa: SLF001  where it is to be overtaken

    async def late(*arguments: Any) -> list[dict[str, Any]]:
        monkeypatch.setattr(deletion, "_find_orphans", orphans)
        found = await orphans(*arguments)
        await service.delete_user(app_name=KEY.app_name, user_id=KEY.user_id)
        session = await service.create_session(**KEY.id)
        await service.append_event(session, Event(author="new"))
        return found

    monkeypatch.setattr(deletion, "_find_orphans", late)
    await service.delete_user(app_name=KEY.app_name, user_id=KEY.user_id)

    assert await service.get_session(**KEY.id) is not None
    assert left_in(admin, database) == {"sessions": 1, "events": 1}


async def test_a_refusal_by_a_foreign_index_is_not_retried_for_ever(
    service: MongoSessionService, database: str, admin: MongoClient
) -> None:
    """It is an error like any other."""
    admin[database].sessions.create_index("state.email", unique=True)
    await service.create_session(app_name="app", user_id="other")

    with pytest.raises(AlreadyExistsError):
        await service.create_session(**KEY.id)


async def test_a_late_delete_without_transactions_removes_no_new_session(
    mongodb_uri: str,
    database: str,
    admin: MongoClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It meets a new session where there was a tombstone, and leaves it alone."""
    remove = Storage.remove
    async with MongoSessionService(
        mongodb_uri, database=database, transactions=False
    ) as service:
        admin[database].sessions.insert_one({**TOMBSTONE})
        admin[database].events.insert_one(event(KEY, 1))

        async def late(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(Storage, "remove", remove)
            session = await service.create_session(**KEY.id)
            await service.append_event(session, Event(author="new"))
            async for count in remove(*arguments, **options):
                yield count

        monkeypatch.setattr(Storage, "remove", late)
        await service.delete_session(**KEY.id)

        assert await service.get_session(**KEY.id) is not None
    assert left_in(admin, database) == {"sessions": 1, "events": 1}
