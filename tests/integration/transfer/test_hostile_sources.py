"""Stores that hold anything anywhere: one bad thing is one problem, with a name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from support.hostile_stores import STORES, TAKE_NO_TEXT, Talk, Where, talks
from support.hostile_values import OBJECTS, OPERATORS, TEXTS

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import (
    EVERYTHING,
    JsonLinesSource,
    Policies,
    Problem,
    StoreSource,
    export,
    move,
    verify,
)

HALVES = ["\ud83d", "x\udfff", "\ud83d\ude00"]
"""Of an emoji; the last two make one only if they are joined."""
ALL = {
    "texts": [each for each in TEXTS if each not in OPERATORS],
    "objects": [
        each
        for each in OBJECTS
        if not (isinstance(each, dict) and {*each} <= {*OPERATORS})
    ],
}
"""But for operators, which are no danger, since queries ask for none of these."""
SKIPPING = Policies("skip", "skip")


@pytest.mark.parametrize(
    ("store", "values"),
    [
        # No document holds half of a character, but as this package writes it.
        *(
            pytest.param(it, HALVES, id=it)
            for it in STORES
            if it not in {"store", "sql"}
        ),
        *(
            pytest.param(it, values, id=f"{it}-{kind}", marks=pytest.mark.release)
            for it in STORES
            for kind, values in ALL.items()
        ),
    ],
)
async def test_what_cannot_be_moved_is_a_problem_and_all_else_is_moved(
    store: str,
    values: list[Any],
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient[Any],
    tmp_path: Path,
) -> None:
    """Moved, verified, exported, imported again: nothing else ends or differs."""
    first, last = Talk("!first"), Talk("~last")
    hostile = [each for _, each in talks(values)]
    other = f"{database}_source"
    try:
        at = Where(tmp_path, mongodb_uri, other)
        source = STORES[store]([first, *hostile, last], at)
        problems: list[Problem] = []
        differing: list[Problem] = []
        async with source, StoreSource(service) as target:
            await source.count_events(EVERYTHING)
            await move(source, service, policies=SKIPPING, on_problem=problems.append)
            await verify(source, target, on_difference=differing.append)
            again: list[Problem] = []
            path = tmp_path / "again.jsonl"
            await export(target, path, on_problem=again.append)
        assert {each.where for each in differing} <= {each.where for each in problems}
        assert again == []
        lost = " ".join(each.where for each in problems)
        kept = [it.user_id for place, it in talks(HALVES) if place not in TAKE_NO_TEXT]
        assert values is not HALVES or not [it for it in kept if repr(it) in lost]
        for each in (first, last):
            shown = await service.get_session(**each.ids)
            assert shown is not None
            assert [it.id for it in shown.events] == ["e"]
        async with (
            MongoSessionService(
                mongodb_uri, database=other, collection_prefix="c_"
            ) as copy,
            JsonLinesSource(path) as file,
            StoreSource(copy) as target,
        ):
            await move(file, copy)
            verified = await verify(file, target, is_exact=True)
        assert verified.differences == 0
    finally:
        admin.drop_database(other)
