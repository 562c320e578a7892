"""A family's document: who is whose version, whoever wrote it."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from mongo_session_service.codec.bson_values import UnreadableError
from mongo_session_service.codec.family_record import FamilyRecord, Member
from mongo_session_service.model.records import FamilyKey

KEY = FamilyKey("app", "ada", "f")


def family(*members: Member, shown: str = "0") -> FamilyRecord:
    return FamilyRecord(
        {
            "_id": KEY.id,
            "create_time": 0.0,
            "shown": shown,
            "members": [each.to_document() for each in members],
        }
    )


def member(place: int, parent: int | None = None, revision: int = 0) -> Member:
    return Member(f"{place}", float(place), parent, "i", revision)


def slow_version(members: list[Member], place: int, there: set[Any]) -> Any:
    """Which session a member has another version of, by its whole path."""
    path: list[tuple[Any, float]] = []
    shared, at = float("inf"), place
    while (parent := members[at].parent) is not None:
        shared, at = min(shared, members[at].revision), parent
        path.append((members[at].origin, shared))
    known = [it for origin, it in path if origin in there]
    revision = int(max(known, default=min((it for _, it in path), default=0)))
    first = [origin[0] for origin, it in path if it == revision]
    return revision, first[-1] if first else None


@pytest.mark.parametrize("seed", range(20))
def test_versions_are_those_of_the_whole_path(seed: int) -> None:
    """However a family was edited, and whatever of it is gone."""
    chance = random.Random(seed)  # noqa: S311  no secret
    members = [member(0)]
    for place in range(1, 40):
        parent = chance.randrange(place)
        members.append(member(place, parent, chance.randint(0, 6)))
    there = {each.origin for each in members if chance.random() < 0.7}

    found = {one.id: (one.revision, of) for one, of in family(*members).versions(there)}

    assert found == {
        each.id: slow_version(members, place, there)
        for place, each in enumerate(members)
        if each.origin in there
    }


@pytest.mark.parametrize("same", [True, False], ids=["one message", "each message"])
def test_many_versions_take_no_square(same: bool) -> None:  # noqa: FBT001
    """Ten thousand that were edited one after the other take less than seconds."""
    chain = [
        member(n, n - 1 if n else None, 0 if same else 2 * n) for n in range(10_000)
    ]
    began = time.process_time()
    found = [*family(*chain).versions({each.origin for each in chain})]
    assert time.process_time() - began < 2
    assert len(found) == 10_000
    assert {of for _, of in found} == (
        {None, "0"} if same else {None, *(f"{n}" for n in range(9_999))}
    )


@pytest.mark.parametrize("parent", [1, 2, 7, -1, True, "0", None, 0.0])
def test_a_forged_parent_makes_no_circle(parent: Any) -> None:
    """A member that names itself, or a later one, was made of none."""
    document = family(member(0), member(1, 0), member(2, 1)).document
    document["members"][1]["parent"] = parent
    forged = FamilyRecord(document)
    versions = [*forged.versions({each.origin for each in forged.members})]
    assert [each.parent for each, _ in versions] == [None, None, 1]
    assert ("0", 0.0) not in forged.shared_with(("2", 2.0))


@pytest.mark.parametrize(
    "damage",
    [
        {"members": 5},
        {"members": [5]},
        {"members": [{}]},
        {"members": [{"id": 7, "created": 1.0}]},
        {"members": [{"id": "s", "created": "x"}]},
        {"members": [{"id": "s", "created": 1.0, "revision": None}]},
        {"shown": None},
        {"create_time": None},
    ],
    ids=repr,
)
def test_a_damaged_family_has_an_error_of_ours(damage: dict[str, Any]) -> None:
    """No error of Python reaches a caller."""
    with pytest.raises(UnreadableError):
        FamilyRecord({**family(member(0)).document, **damage})


def test_what_two_have_in_common() -> None:
    """It is the least of what is shared on the way from one to the other."""
    one = family(
        *(member(0), member(1, 0, 4), member(2, 1, 6)),
        member(3, 0, 1)._replace(repeats=True),
    )
    assert one.shared_with(("2", 2.0)) == {
        ("2", 2.0): float("inf"),
        ("1", 1.0): 6,
        ("0", 0.0): 4,
        ("3", 3.0): 2,
    }


def test_whose_turn_it_is_to_be_shown() -> None:
    """The parent of what was, or else the newest that is left."""
    one = family(member(0), member(1, 0), member(2, 1), shown="2")
    assert one.shown_of({("2", 2.0), ("0", 0.0)}) == "2"
    assert one.shown_of({("0", 0.0), ("1", 1.0)}) == "1"
    assert one.shown_of({("0", 0.0)}) == "0"
    assert one.shown_of({("0", 9.0)}) is None
