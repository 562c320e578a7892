"""Pickles of google-adk 1.x are read as data, and never run."""

from __future__ import annotations

import builtins
import datetime as dt
import os
import pickle
import subprocess
from collections import OrderedDict
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from google.adk.events import EventActions
from google.genai import types
from hypothesis import given
from support.strategies import states

from mongo_session_service.transfer.sources.adk_pickle import load_actions
from mongo_session_service.transfer.sources.base import UnreadableError


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

    with pytest.raises(UnreadableError):
        load_actions(pickled)
    assert not path.exists()


def test_functions_of_allowed_modules_are_not_run() -> None:
    """A name inside a module of models stands for data, even if it is a function."""
    pickled = b"cgoogle.adk.sessions.base_session_service\nBaseSessionService\n(tR."

    with pytest.raises(UnreadableError):
        load_actions(pickled)


def test_a_pickle_changes_nothing_for_the_next() -> None:
    """What it tries to do to a class that it names is refused, and has no effect."""
    actions = EventActions(escalate=True)
    named = b"cgoogle.adk.events.event_actions\nEventActions\n"

    for change in (b"}Vfields\nNsb.", b"Vfields\nNs.", b"Vfields\na."):
        with pytest.raises(UnreadableError):
            load_actions(named + change)

    assert load_actions(pickle.dumps(actions)) == actions


@pytest.mark.parametrize(
    "value",
    [bytearray(), 1j, frozenset({1}), {1}, OrderedDict(a=1), Decimal(1), UUID(int=1)]
    + [dt.date(2025, 1, 2), dt.datetime(2025, 1, 2, tzinfo=dt.UTC), dt.time(1)]
    + [dt.timedelta(1), dt.UTC],
    ids=lambda value: type(value).__name__,
)
def test_no_type_of_data_can_be_changed(value: Any) -> None:
    """What a pickle sets on a type that it names is refused, and the type unharmed."""
    kind = type(value)
    named = f"c{kind.__module__}\n{kind.__name__}\n".encode()
    attributes = b"}V__defaults__\n(Vevil\nts"
    good = pickle.dumps({"state_delta": {"x": value}})

    for state in (b"N" + attributes + b"\x86", attributes):
        with pytest.raises(UnreadableError):
            load_actions(named + state + b"b.")

    assert load_actions(good).state_delta == {"x": value}
    assert not hasattr(kind, "__defaults__")


@pytest.mark.parametrize(
    "broken",
    [b"", b"no pickle", pickle.dumps([1]), pickle.dumps(EventActions())[:-20]]
    + [pickle.dumps({"unknown_action": 1}), b"\x80\x04\x95\xff\xff\xff\xff"],
    ids=["empty", "text", "list", "truncated", "unknown", "frame"],
)
def test_broken_pickles_are_refused(broken: bytes) -> None:
    """What is no pickle of actions is one error, which quotes nothing of it."""
    with pytest.raises(UnreadableError):
        load_actions(broken)


LONG = "x" * 10_000


def within_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def many_times_over() -> Any:
    value: Any = "x"
    for _ in range(40):
        value = [value] * 10
    return value


@pytest.mark.parametrize(
    "value",
    [within_itself(), many_times_over(), Call(bytearray, 2**40)]
    + [Call(types.Type, many_times_over()), [LONG] * 200]
    + [[{LONG: number} for number in range(200)], Call(types.Type, [LONG] * 200)],
    ids=["in itself", "many times", "huge", "as a member", "text", "keys", "in one"],
)
def test_small_pickles_of_large_values_are_refused(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle that refers to a value again and again takes neither time nor memory."""
    monkeypatch.setattr(
        "mongo_session_service.transfer.sources.adk_pickle._MOST", 10_000
    )
    with pytest.raises(UnreadableError):
        load_actions(pickle.dumps({"state_delta": {"x": value}}))
