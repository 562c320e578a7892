"""Who is told of which change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from mongo_session_service.changes.change import Change
from mongo_session_service.changes.decoder import ChangeRecord
from mongo_session_service.changes.routing import Router, Scope
from mongo_session_service.model.records import SessionKey

KEY = SessionKey("a", "u", "s")
OTHER = SessionKey("a", "u", "t")
STRANGER = SessionKey("a", "v", "s")


@dataclass(frozen=True)
class Reader:
    scope: Scope


READERS = {
    "session": Reader(Scope(*KEY)),
    "other session": Reader(Scope(*OTHER)),
    "user": Reader(Scope("a", "u")),
    "other user": Reader(Scope("a", "v")),
    "app": Reader(Scope("a")),
    "other app": Reader(Scope("b")),
    "all": Reader(Scope()),
}


@pytest.fixture
def router() -> Router[Reader]:
    router: Router[Reader] = Router()
    for reader in READERS.values():
        router.attach(reader)
    return router


def appended(key: SessionKey, **delta: Any) -> ChangeRecord:
    delta = {name.replace("_", ":"): value for name, value in delta.items()}
    event = {
        "id": "e",
        "author": "x",
        "invocation_id": "",
        "timestamp": 1.0,
        "actions": {"state_delta": delta},
    }
    return record("appended", key, {"_id": key.event_id(1), "event": event})


def record(kind: Any, key: SessionKey, document: dict[str, Any]) -> ChangeRecord:
    return ChangeRecord(kind, key, {"document": document})


def deleted(key: SessionKey) -> ChangeRecord:
    return ChangeRecord("deleted", key, {})


def app_state(**delta: Any) -> ChangeRecord:
    named = {f"app:{k}": v for k, v in delta.items()}
    return ChangeRecord("state", ("a",), {"delta": named})


def told(router: Router[Reader], item: ChangeRecord, txn: int = 1) -> dict[str, Change]:
    """Who is told what, by the names of the readers."""
    names = {reader: name for name, reader in READERS.items()}
    routed = router.route(replace(item, transaction=("session", txn)))
    return {names[reader]: each.change() for reader, each in routed}


@pytest.mark.parametrize(
    ("item", "names"),
    [
        (appended(KEY), {"session", "user", "app", "all"}),
        (appended(STRANGER), {"other user", "app", "all"}),
        (deleted(KEY), {"session", "user", "app", "all"}),
        (
            record("created", KEY, {"revision": 0, "state": {}, "create_time": 1.0}),
            {"user", "app", "all"},
        ),
        (
            ChangeRecord("state", ("a", "u"), {"delta": {"user:x": 1}}),
            {"session", "other session", "user", "app", "all"},
        ),
        (app_state(x=1), set(READERS) - {"other app"}),
        (appended(SessionKey("c", "u", "s")), {"all"}),
    ],
)
def test_changes_reach_their_scope_only(
    router: Router[Reader], item: Any, names: set[str]
) -> None:
    """Each is delivered to the readers of its session, user or app."""
    assert set(told(router, item)) == names


def test_all_readers_receive_the_same_object(router: Router[Reader]) -> None:
    """A change is decoded once, however many readers it has."""
    for item in (appended(KEY), app_state(x=1)):
        assert len({id(each) for _, each in router.route(item)}) == 1


def test_an_events_own_state_is_not_delivered_twice(router: Router[Reader]) -> None:
    """Its readers do not receive the state that it set as a change of its own."""
    told(router, appended(KEY, app_x=1))
    changes = told(router, app_state(x=1))

    assert set(changes) == {"other session", "other user"}


def test_state_set_by_another_event_of_the_transaction_is_delivered(
    router: Router[Reader],
) -> None:
    """Each reader receives the keys that its own event has not set."""
    told(router, appended(KEY, app_x=1, app_y=1))
    told(router, appended(OTHER, app_y=2, app_z=2))
    changes = told(router, app_state(x=1, y=2, z=2))

    assert changes["session"].state_delta == {"app:y": 2, "app:z": 2}
    assert changes["other session"].state_delta == {"app:x": 1}
    assert changes["other user"].state_delta == {"app:x": 1, "app:y": 2, "app:z": 2}
    assert not {"user", "app", "all"} & set(changes)


def test_a_value_that_was_replaced_is_delivered(router: Router[Reader]) -> None:
    """Its last writer was something without an event."""
    told(router, appended(KEY, app_x=1))

    assert told(router, app_state(x=True))["session"].state_delta == {"app:x": True}


def test_a_write_of_another_transaction_is_delivered_to_all(
    router: Router[Reader],
) -> None:
    """A later write to the same state is news to everyone."""
    told(router, appended(KEY, app_x=1), txn=1)

    assert "session" in told(router, app_state(x=1), txn=2)


def test_a_detached_reader_receives_nothing(router: Router[Reader]) -> None:
    """Detaching twice does no harm."""
    for _ in range(2):
        router.detach(READERS["session"])

    assert "session" not in told(router, appended(KEY))
    assert len(router) == len(READERS) - 1


def test_a_change_that_cannot_be_read_lacks_its_event() -> None:
    """An event of a later ADK is told by its revision, without its content."""
    item = record("appended", KEY, {"_id": KEY.event_id(1), "event": {"author": 1}})

    change = item.readable_change

    assert change is not None
    assert (change.kind, change.revision, change.event) == ("appended", 1, None)


def test_an_announced_delete_is_not_delivered_twice(
    router: Router[Reader],
) -> None:
    """The delete itself, in the same transaction, is delivered to no reader."""
    assert not told(router, ChangeRecord("tombstone", KEY, {}), txn=1)
    assert not told(router, deleted(KEY), txn=1)
    assert told(router, deleted(OTHER), txn=1)
    assert told(router, deleted(KEY), txn=2)
