"""Whoever comes back goes on in the session that was read, not in one with its id."""

from __future__ import annotations

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from support.subscriptions import APP, ID, SESSION, USER, new_event

from mongo_session_service import Change, InvalidInputError, MongoSessionService


async def read(
    service: MongoSessionService, after: str | int | None, count: int
) -> tuple[list[Change], str]:
    """Some changes after a place, and the place after them."""
    async with service.watch(APP, USER, ID, after_revision=after) as changes:
        received = [await anext(changes) for _ in range(count)]
        assert changes.place is not None
        return received, changes.place


async def create(service: MongoSessionService, *names: str) -> None:
    """Make the session anew, with some events."""
    await service.delete_session(**SESSION)
    session = await service.create_session(**SESSION)
    for name in names:
        await service.append_event(session, new_event(**{name: 1}))


async def test_a_reader_goes_on_after_its_place(service: MongoSessionService) -> None:
    """In the same session nothing is missing, and nothing comes twice."""
    await create(service, "a", "b")
    (snapshot,), place = await read(service, None, 1)
    assert (snapshot.revision, snapshot.state) == (2, {"a": 1, "b": 1})
    await service.append(**SESSION, event=new_event(c=1))
    (appended,), place = await read(service, place, 1)
    assert appended.state_delta == {"c": 1}
    await service.append(**SESSION, event=new_event(d=1))
    (appended,), _ = await read(service, place, 1)
    assert appended.state_delta == {"d": 1}


@pytest.mark.parametrize("names", ["", "x", "xy", "xyz", "wxyz"])
async def test_a_session_made_anew_is_received_as_such(
    names: str, service: MongoSessionService
) -> None:
    """However many events it has: deleted, its snapshot, and what follows."""
    await create(service, "a", "b")
    _, place = await read(service, 0, 2)
    await create(service, *names)
    async with service.watch(APP, USER, ID, after_revision=place) as changes:
        received = [await anext(changes) for _ in range(2)]
        after = changes.place
        await service.append(**SESSION, event=new_event(later=1))
        received.append(await anext(changes))
    deleted, snapshot, appended = received
    assert (deleted.kind, snapshot.kind) == ("deleted", "snapshot")
    assert snapshot.state == dict.fromkeys(names, 1)
    assert snapshot.revision == len(names)
    assert appended.state_delta == {"later": 1}
    (again,), _ = await read(service, after, 1)
    assert again == appended


async def test_whoever_looks_back_sees_no_other_session(
    service: MongoSessionService,
) -> None:
    """At a place, before and after it: neither its state nor its events."""
    await create(service, "a", "b", "c")
    _, place = await read(service, 0, 2)
    at = await service.get_session_at(**SESSION, revision=place)
    assert at is not None
    assert at.state == {"a": 1, "b": 1}
    ranges = ({"after_revision": place}, {"before_revision": place})
    for each, revisions in zip(ranges, ([3], [1]), strict=True):
        for rewound in (True, False):
            found = service.iter_events(**SESSION, **each, rewound=rewound)
            assert [revision async for revision, _ in found] == revisions
    for names in ("", "wxyz"):
        await create(service, *names)
        assert await service.get_session_at(**SESSION, revision=place) is None
        for each in ranges:
            for rewound in (True, False):
                with pytest.raises(SessionNotFoundError):
                    async for _ in service.iter_events(
                        **SESSION, **each, rewound=rewound
                    ):
                        pass


async def test_a_place_is_a_text_of_a_certain_form(
    service: MongoSessionService,
) -> None:
    """Other texts are refused."""
    await create(service, "a", "b")
    _, place = await read(service, None, 1)
    other = place.replace("-", "#")
    for wrong in ("", "x", "1", "1-2", "1-2-3", f"{place}0", other, f"{place}\n"):
        with pytest.raises(InvalidInputError, match="after_revision"):
            service.watch(APP, USER, ID, after_revision=wrong)
    with pytest.raises(InvalidInputError, match="session is at revision 2"):
        await read(service, f"9-{place.partition('-')[2]}", 1)
