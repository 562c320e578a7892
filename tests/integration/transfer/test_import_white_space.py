"""Ids that differ only in the white space around them, of which one is stored."""

from __future__ import annotations

import gzip
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from google.adk.events import Event
from pymongo import MongoClient
from support.transfers import FAIL, SKIP, everything, export_text, imported

from mongo_session_service import MongoSessionService
from mongo_session_service.errors import ConflictError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.transfer import (
    EVERYTHING,
    JsonLinesSource,
    Moved,
    Policies,
    Selection,
    SourceError,
    move,
)
from mongo_session_service.transfer.sources import Item, SessionHeader

SIMILAR = ("s", "s ", " s")
OTHERS = tuple(f"t{number}" for number in range(12))


def written(path: Path, ids: tuple[str, ...], events: int = 2) -> Path:
    """An export of sessions with these ids, whose state and events tell them apart."""
    items: list[SessionHeader | Event] = []
    for number, id_ in enumerate(ids):
        key = SessionKey("app", "user", id_)
        items.append(SessionHeader(key, {"id": id_}, 100.0, float(number)))
        items += (
            Event(id=f"{id_}{n}", author="x", timestamp=1.0) for n in range(events)
        )
    text = export_text(*items)
    path.write_bytes(gzip.compress(text.encode()))
    return path


async def moved(
    path: Path, service: MongoSessionService, policies: Policies
) -> tuple[Moved, list[str]]:
    """What was moved, and what was left out."""
    left_out: list[str] = []
    async with JsonLinesSource(path) as source:
        result = await move(
            source,
            service,
            policies=policies,
            on_problem=lambda each: left_out.append(str(each)),
        )
    return result, left_out


async def state_of(service: MongoSessionService, id_: str) -> object:
    session = await service.get_session(app_name="app", user_id="user", session_id=id_)
    assert session is not None
    return session.state["id"]


@pytest.fixture(params=["one batch", "many batches"])
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has sessions written together, or one by one and in parts."""
    if request.param == "many batches":
        module = "mongo_session_service.transfer.batches"
        monkeypatch.setattr(f"{module}.MAX_EVENTS", 1)


@pytest.mark.usefixtures("batches")
@pytest.mark.parametrize(
    "order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)], ids=["own", "leading", "trailing"]
)
async def test_of_padded_ids_one_is_stored_and_the_others_are_named(
    service: MongoSessionService,
    tmp_path: Path,
    order: tuple[int, ...],
) -> None:
    """The first is kept, also by the next import; everything else is moved."""
    first, *others = (SIMILAR[each] for each in order)
    path = written(tmp_path / "x.jsonl.gz", (*OTHERS[:6], first, *others, *OTHERS[6:]))

    result, left_out = await moved(path, service, SKIP)
    again, _ = await moved(path, service, SKIP)

    assert (result.new, result.skipped, result.problems) == (13, 2, 0)
    assert [each.split(" of ")[0] for each in left_out] == [
        f"session {id_!r}" for id_ in others
    ]
    assert all("white space" in each for each in left_out)
    assert (again.unchanged, again.skipped) == (13, 2)
    assert await state_of(service, "s") == first


@pytest.mark.usefixtures("batches")
async def test_padded_ids_end_an_import_that_skips_nothing(
    service: MongoSessionService, admin: MongoClient, database: str, tmp_path: Path
) -> None:
    """The error names one of them, and no place stays reserved."""
    path = written(tmp_path / "x.jsonl.gz", (*OTHERS, *SIMILAR))

    with pytest.raises(ConflictError, match=r"session 's ' .* white space"):
        await imported(path, service, FAIL)

    stored = everything(admin, database)["sessions"]
    assert [each for each in stored if "revision" not in each] == []


async def test_an_id_with_white_space_alone_is_moved(
    service: MongoSessionService, tmp_path: Path
) -> None:
    """Where no other id is the same, it is stored as ADK's own services store it."""
    path = written(tmp_path / "x.jsonl.gz", (" s ", "t\n"))

    result, left_out = await moved(path, service, FAIL)

    assert (result.new, left_out) == (2, [])
    assert await state_of(service, "s") == " s "


class Broken(JsonLinesSource):
    """A file that cannot be read to its end."""

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """Read, and fail at event 150 of the second session."""
        number = 0
        async for item in super().read(selection):
            yield item
            number += 1
            if number == 352:
                raise SourceError("It is broken here.")


async def test_an_import_that_cannot_be_finished_leaves_nothing_in_part(
    service: MongoSessionService,
    admin: MongoClient,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The place of a session in the middle of which it ends is free again."""
    monkeypatch.setattr("mongo_session_service.transfer.batches.MAX_EVENTS", 50)
    path = written(tmp_path / "x.jsonl.gz", ("whole", "half"), events=200)

    async with Broken(path) as source:
        with pytest.raises(SourceError, match="broken here"):
            await move(source, service)

    stored = everything(admin, database)
    assert [each["_id"]["session_id"] for each in stored["sessions"]] == ["whole"]
    assert {each["_id"]["session_id"] for each in stored["events"]} == {"whole"}
    await service.create_session(app_name="app", user_id="user", session_id="half")
