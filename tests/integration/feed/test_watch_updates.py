"""What subscribers and consumers receive of new titles, labels and expiry times."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.subscriptions import APP, ID, SESSION, USER, Follower, new_event

from mongo_session_service import Change, MongoSessionService

NAMED = {"__session_metadata__": {"displayName": "There"}}


def details(change: Change) -> tuple[Any, ...]:
    assert change.kind == "updated"
    assert change.session_key == tuple(SESSION.values())
    assert (change.revision, change.event, change.state_delta) == (None, None, {})
    return change.title, change.labels, change.expire_time


@pytest.mark.parametrize("scope", [(), (APP,), (APP, USER), (APP, USER, ID)])
async def test_new_details_are_received(
    service: MongoSessionService, scope: tuple[str, ...]
) -> None:
    """Each update brings all details; a rename by an append follows its event."""
    session = await service.create_session(**SESSION, title="A", labels={"l": "1"})
    async with Follower(service.watch(*scope)) as follower:
        await service.update_session(**SESSION, title="B")
        await service.update_session(**SESSION, labels=None)
        updated = await service.update_session(**SESSION, title=None, ttl=5000)
        await service.append_event(session, new_event(k=1))
        await service.append_event(session, new_event(**NAMED))
        await service.update_session(**SESSION, ttl=None)
        await follower.until(lambda: follower.kinds.count("updated") == 5)

    told = [each for each in follower.told if each.kind != "snapshot"]
    assert [each.kind for each in told] == [
        *("updated", "updated", "updated", "appended", "appended", "updated"),
        "updated",
    ]
    first, second, third, plain, _, renamed, last = told
    assert details(first) == ("B", {"l": "1"}, None)
    assert details(second) == ("B", {}, None)
    assert details(third) == (None, {}, updated.expire_time)
    assert details(renamed)[:2] == details(last)[:2] == ("There", {})
    assert (renamed.expire_time or 0) >= (updated.expire_time or 0)
    assert last.expire_time is None
    assert (plain.title, plain.labels, plain.expire_time) == (None, None, None)
    shown = json.loads(first.json_text)
    assert (shown["title"], shown["labels"]) == ("B", {"l": "1"})
    assert not {"title", "labels", "expire_time"} & json.loads(plain.json_text).keys()


@pytest.mark.parametrize("detail", [{"title": "B"}, {"labels": {"l": "1"}}])
async def test_a_returning_subscriber_receives_new_details(
    service: MongoSessionService, detail: dict[str, Any]
) -> None:
    """It gets what it has missed, and the removal of what it may show."""
    await service.create_session(**SESSION)
    for given in (detail, dict.fromkeys(detail)):
        found = await service.update_session(**SESSION, **given)
        async with service.watch(**SESSION, after_revision=0) as changes:
            shown = (found.title, found.labels, None)
            assert details(await anext(changes)) == shown


async def test_consumers_receive_updates_on_request(
    service: MongoSessionService,
) -> None:
    """A handler gets them with ``updates`` only."""
    kinds = {
        "without": ["created", "deleted"],
        "with": ["created", "updated", "updated", "deleted"],
    }
    for name in kinds:
        async with service.consumer(name, start="now", updates=name == "with"):
            pass
    await service.create_session(**SESSION, title="A")
    await service.update_session(**SESSION, title="B", labels={"l": "1"})
    await service.update_session(**SESSION, title=None)
    await service.delete_session(**SESSION)

    for name, wanted in kinds.items():
        received: list[Change] = []
        consumer = service.consumer(name, updates=name == "with")
        await consumer.run(received.append, until_caught_up=True)
        assert [each.kind for each in received] == wanted
    assert details(received[1]) == ("B", {"l": "1"}, None)
