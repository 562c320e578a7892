"""Fields that the installed ADK does not know are named, and lost by no source."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from support.hostile_stores import STORES, Talk, Where

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import Policies, Problem, StoreSource, move, verify

CONFIG = {
    "authScheme": {"type": "apiKey", "in": "header", "name": "k"},
    "credentialKey": "k",
}
LEVELS: dict[str, tuple[Any, ...]] = {
    "top": (),
    "actions": ("actions",),
    "node": ("node_info",),
    "content": ("content",),
    "part": ("content", "parts", 0),
    "response": ("content", "parts", 1, "function_response"),
}
"""Where a later release may have more fields, by the path to them."""


@pytest.mark.parametrize("store", sorted({*STORES} - {"service"}))
async def test_an_unknown_field_is_a_problem(
    store: str,
    service: MongoSessionService,
    mongodb_uri: str,
    database: str,
    admin: MongoClient[Any],
    tmp_path: Path,
) -> None:
    """Import and verify name each such event, and what is left of it is not stored."""
    talks = [Talk(name, app_state={}) for name in LEVELS]
    for talk, path in zip(talks, LEVELS.values(), strict=True):
        place = talk.event = copy.deepcopy(talk.event) | {"node_info": {"path": "a"}}
        for name in path:
            place = place[name]
        place["followUps"] = ["a"]
    other = f"{database}_source"
    source = STORES[store](talks, Where(tmp_path, mongodb_uri, other))
    problems: list[Problem] = []
    differing: list[Problem] = []
    skipping = Policies(on_error="skip")
    try:
        async with source, StoreSource(service) as target:
            await move(source, service, policies=skipping, on_problem=problems.append)
            await verify(source, target, on_difference=differing.append)
        assert [each.where for each in problems] == [each.where for each in differing]
        reasons = [each.reason for each in problems if "release of ADK" in each.reason]
        assert len(reasons) == len(LEVELS)
        found = [await service.get_session(**each.ids) for each in talks]
        assert [each and each.events for each in found] == [[]] * len(LEVELS)
    finally:
        admin.drop_database(other)


async def test_what_adk_keeps_is_no_problem(
    service: MongoSessionService, mongodb_uri: str, database: str, tmp_path: Path
) -> None:
    """Names in both forms, free values, and models that take any field."""
    talk = Talk("ada", app_state={})
    talk.event["errorCode"] = "x"
    talk.event["actions"]["requestedAuthConfigs"] = {"c": CONFIG | {"newer": 1}}
    talk.event["custom_metadata"] = {"followUps": [{"a": 1}]}
    source = STORES["sqlite"]([talk], Where(tmp_path, mongodb_uri, database))

    async with source:
        moved = await move(source, service)

    assert (moved.events, moved.problems) == (1, 0)
