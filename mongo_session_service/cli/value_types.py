"""Types of values on the command line: times, durations, assignments, functions."""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
from typing_extensions import override

from mongo_session_service.cli.terminal import DEBUG_HINT, printable

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of the units of durations."""

Parameter = click.Parameter | None
Context = click.Context | None


class _ValueType(click.ParamType):  # type: ignore[type-arg]  # generic in some releases
    """A type whose values :meth:`convert` makes, or fails in one line."""


class Timestamp(_ValueType):
    """A time as seconds since 1970: ISO 8601, in UTC unless it names a zone."""

    name = "time"

    @override
    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        with suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(float(value), UTC).timestamp()
        with suppress(ValueError, OverflowError):
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        return self.fail(
            f"{value!r} is not a time such as 2026-11-21T04:00:00Z.", param, ctx
        )


class PastTimestamp(Timestamp):
    """A time between 1970 and now."""

    @override
    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        seconds = super().convert(value, param, ctx)
        if not 0 < seconds <= time.time():
            self.fail(f"{value!r} is not in the past, after 1970.", param, ctx)
        return seconds


class FutureTimestamp(Timestamp):
    """A time after now."""

    @override
    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        seconds = super().convert(value, param, ctx)
        if seconds <= time.time():
            self.fail(f"{value!r} is not in the future.", param, ctx)
        return seconds


class Duration(_ValueType):
    """A duration in seconds, at most 100 years: a number, perhaps with a unit."""

    name = "duration"

    @override
    def convert(self, value: Any, param: Parameter, ctx: Context) -> float:
        from mongo_session_service.model.metadata import MAX_TTL

        parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", value.strip())
        if parts is None:
            message = f"{value!r} is not a duration such as 7200s, 12h or 7d."
            self.fail(message, param, ctx)
        seconds = float(parts[1]) * _UNITS[parts[2]]
        if not 0 < seconds <= MAX_TTL:
            longest = f"{MAX_TTL / _UNITS['d']:.0f}d (100 years)"
            message = f"{value!r} is out of range: more than 0, at most {longest}."
            self.fail(message, param, ctx)
        return seconds


class Assignment(_ValueType):
    """A name and a value, such as ``NAME=VALUE``."""

    name = "assignment"

    def __init__(self, form: str, example: str) -> None:
        self.form = form
        self.example = example

    @override
    def convert(self, value: Any, param: Parameter, ctx: Context) -> tuple[str, Any]:
        name, equals, assigned = value.partition("=")
        if not name or not equals:
            message = f"{value!r} is not {self.form}, such as {self.example}."
            self.fail(message, param, ctx)
        return name, assigned


class JsonAssignment(Assignment):
    """A name and a value in JSON: ``KEY=JSON``."""

    @override
    def convert(self, value: Any, param: Parameter, ctx: Context) -> tuple[str, Any]:
        name, text = super().convert(value, param, ctx)
        try:
            return name, json.loads(text)
        except ValueError:
            self.fail(
                f"The value of {name!r} is not JSON; a text needs quotes:"
                f" '{name}={json.dumps(text)}'.",
                param,
                ctx,
            )


class ImportedFunction(_ValueType):
    """A function, ``MODULE:FUNCTION``, also of a module in the current directory."""

    name = "function"

    @override
    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        module_name, _, path = value.partition(":")
        if not module_name or not path:
            message = f"{value!r} is not MODULE:FUNCTION, such as my_app.name:function."
            self.fail(message, param, ctx)
        found = self._import_module(module_name, param, ctx)
        for name in path.split("."):
            if not hasattr(found, name):
                near = get_close_matches(name, vars(found), n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                self.fail(f"{module_name!r} has no {name!r}.{hint}", param, ctx)
            found = getattr(found, name)
        if not callable(found):
            self.fail(f"{value!r} is not a function.", param, ctx)
        return found

    def _import_module(self, name: str, param: Parameter, ctx: Context) -> Any:
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
                self.fail(message, param, ctx)
            what = f"{type(error).__name__}: {printable(str(error))}"
            message = f"Module {name!r} cannot be imported: {what}. {DEBUG_HINT}"
            raise click.ClickException(message) from error
