"""Pickles of google-adk 1.x are loaded as data, and never run."""

from __future__ import annotations

import builtins
import datetime as dt
import os
import pickle
import subprocess
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.adk.events import EventActions
from hypothesis import given
from support.strategies import states

from mongo_session_service.transfer.sources.adk_rows import load_actions
from mongo_session_service.transfer.sources.base_source import MalformedError


class Call:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


@given(states)
def test_actions_come_back_as_they_were_pickled(state: dict[str, Any]) -> None:
    """Whatever JSON a delta holds, the actions read are the actions written."""
    actions = EventActions(state_delta=state, escalate=True, artifact_delta={"a": 1})

    assert load_actions(pickle.dumps(actions)) == actions


def test_plain_data_of_other_types_comes_back() -> None:
    """Dates, decimals, sets and tuples in a delta are read as themselves."""
    delta = {
        "when": dt.datetime(2025, 1, 2, 3, tzinfo=dt.UTC),
        "price": Decimal("1.10"),
        "set": {1, 2},
        "pair": (1, "x"),
    }
    actions = EventActions(state_delta=delta)

    assert load_actions(pickle.dumps(actions)).state_delta == delta


@pytest.mark.parametrize(
    "hostile",
    [
        Call(os.system, "touch {path}"),
        Call(subprocess.Popen, ["touch", "{path}"]),
        Call(builtins.eval, "open('{path}', 'w')"),
        Call(builtins.getattr, {}, "clear"),
        Call(Path.touch, Path("{path}")),
        {"state_delta": {"callable": os.remove}},
    ],
    ids=["system", "Popen", "eval", "getattr", "method", "callable"],
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_nothing_a_pickle_names_is_run(
    hostile: Any, protocol: int, tmp_path: Path
) -> None:
    """A pickle that calls something is refused by its name, and nothing is called."""
    path = tmp_path / "touched"
    pickled = pickle.dumps(hostile, protocol).replace(b"{path}", str(path).encode())

    with pytest.raises(MalformedError):
        load_actions(pickled)
    assert not path.exists()


@pytest.mark.parametrize(
    "broken",
    [b"", b"no pickle", pickle.dumps([1]), pickle.dumps(EventActions())[:-20]]
    + [pickle.dumps({"unknown_action": 1}), b"\x80\x04\x95\xff\xff\xff\xff"],
    ids=["empty", "text", "list", "truncated", "unknown", "frame"],
)
def test_broken_pickles_are_refused(broken: bytes) -> None:
    """What is no pickle of actions is one error, which quotes nothing of it."""
    with pytest.raises(MalformedError):
        load_actions(broken)
