"""What a prune refuses: criteria that would remove more than anyone can mean."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from mongo_session_service import InvalidInputError
from mongo_session_service.sessions.deletion import prune_criteria

NOW = 1.8e9
NOTHING = {"app_name": None, "idle_for": None, "created_before": None}


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("idle_for", each) for each in (0, -1.0, math.nan, math.inf, True, "90d")),
        *(("idle_for", each) for each in (timedelta(0), timedelta(days=-1))),
        *(("created_before", each) for each in (0, -1, math.nan, math.inf, "soon")),
        ("created_before", datetime.fromtimestamp(NOW + 1, UTC)),
        ("created_before", datetime.fromtimestamp(0, UTC)),
        ("created_before", datetime(2026, 1, 1)),  # noqa: DTZ001  in no time zone
        ("app_name", ""),
        ("app_name", 1),
    ],
)
async def test_senseless_times_are_refused(argument: str, value: object) -> None:
    """Zero, negative, no number, the future, and other types are invalid."""
    with pytest.raises(InvalidInputError, match=argument):
        prune_criteria(**NOTHING | {argument: value}, now=NOW)
