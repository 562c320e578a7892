"""Types of values on the command line: times, durations, assignments, functions.

Each parses a text, and raises ``ValueError`` with what is wrong, which click shows
beside the name of the option.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
from typing_extensions import override

from mongo_session_service.cli.terminal import DEBUG_HINT, printable

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of the units of durations."""


class ValueType(click.ParamType):  # type: ignore[type-arg]  # generic in some releases
    """A type whose values a function parses."""

    name = "value"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    @override
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        try:
            return self._parse(value)
        except ValueError as error:
            return self.fail(str(error), param, ctx)


def _parse_time(text: str) -> float:
    """Parse seconds since 1970, or ISO 8601, in UTC unless it names a zone."""
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(float(text), UTC).timestamp()
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    raise ValueError(f"{text!r} is not a time such as 2026-11-21T04:00:00Z.")


def _parse_past_time(text: str) -> float:
    seconds = _parse_time(text)
    if not 0 < seconds <= time.time():
        raise ValueError(f"{text!r} is not in the past, after 1970.")
    return seconds


def _parse_future_time(text: str) -> float:
    seconds = _parse_time(text)
    if seconds <= time.time():
        raise ValueError(f"{text!r} is not in the future.")
    return seconds


def _parse_duration(text: str) -> float:
    """Parse a number with a unit, at most 100 years; return its seconds."""
    from mongo_session_service.model.metadata import MAX_TTL

    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if parts is None:
        raise ValueError(f"{text!r} is not a duration such as 7200s, 12h or 7d.")
    seconds = float(parts[1]) * _UNITS[parts[2]]
    if not 0 < seconds <= MAX_TTL:
        longest = f"{MAX_TTL / _UNITS['d']:.0f}d (100 years)"
        message = f"{text!r} is out of range: more than 0, at most {longest}."
        raise ValueError(message)
    return seconds


def _parse_function(text: str) -> Any:
    """Import ``MODULE:FUNCTION``, also from the current directory."""
    module_name, _, path = text.partition(":")
    if not module_name or not path:
        message = f"{text!r} is not MODULE:FUNCTION, such as my_app.name:function."
        raise ValueError(message)
    found = _import_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            near = get_close_matches(name, vars(found), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{module_name!r} has no {name!r}.{hint}")
        found = getattr(found, name)
    if not callable(found):
        raise ValueError(f"{text!r} is not a function.")  # noqa: TRY004  click says it
    return found


def _import_module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            message = (
                f"There is no module {name!r}, neither installed nor in the current"
                " directory."
            )
            raise ValueError(message) from None
        what = f"{type(error).__name__}: {printable(str(error)).rstrip('.')}"
        message = f"Module {name!r} cannot be imported: {what}. {DEBUG_HINT}"
        raise click.ClickException(message) from error


def _split_assignment(text: str, form: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"{text!r} is not {form}, such as {example}.")
    return name, value


def _parse_condition(text: str) -> tuple[str, Any]:
    """Parse a state key, and in JSON the value that it is to have."""
    key, value = _split_assignment(text, "KEY=JSON", "paid=true")
    try:
        return key, json.loads(value)
    except ValueError:
        message = (
            f"The value of {key!r} is not JSON; a text needs quotes:"
            f" '{key}={json.dumps(value)}'."
        )
        raise ValueError(message) from None


def _parse_start(text: str) -> float | str:
    """Parse from where a consumer is to read: a word, or a time."""
    return text if text in {"now", "beginning"} else _parse_past_time(text)


TIME: Final = ValueType(_parse_time)
PAST_TIME: Final = ValueType(_parse_past_time)
FUTURE_TIME: Final = ValueType(_parse_future_time)
DURATION: Final = ValueType(_parse_duration)
START: Final = ValueType(_parse_start)
FUNCTION: Final = ValueType(_parse_function)
CONDITION: Final = ValueType(_parse_condition)
LABEL: Final = ValueType(
    lambda text: _split_assignment(text, "NAME=VALUE", "stage=test")
)
ZONE: Final = ValueType(
    lambda text: _split_assignment(text, "APP=ZONE", "support=europe")
)
