"""ADK 1.x pickles: event actions read as data, never run.

A pickle names classes to call. Here a name resolves to a data type of the standard
library, or to a stand-in that only records its arguments. No class that a pickle names
is ever imported, and a name outside the lists is refused.
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import io
import pickle
import re
import sys
import uuid
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Final, Self

from google.adk.events.event_actions import EventActions

from mongo_session_service.transfer.sources.base import UnreadableError


class _Bytearray:
    """Creates bytearrays from bytes, but not from a number, which would be the size.

    It is not a function: a pickle could set attributes of one, for all later pickles.
    """

    __slots__ = ()

    def __call__(self, content: bytes = b"") -> bytearray:
        return bytearray(memoryview(content))

    def __setstate__(self, _: Any) -> None:
        raise UnreadableError("its actions would modify a class")


_PLAIN: Final[Mapping[str, Any]] = {
    "builtins.bytearray": _Bytearray(),
    "builtins.complex": complex,
    "builtins.frozenset": frozenset,
    "builtins.set": set,
    "collections.OrderedDict": collections.OrderedDict,
    "datetime.date": dt.date,
    "datetime.datetime": dt.datetime,
    "datetime.time": dt.time,
    "datetime.timedelta": dt.timedelta,
    "datetime.timezone": dt.timezone,
    "decimal.Decimal": decimal.Decimal,
    "uuid.UUID": uuid.UUID,
}
_MODELS: Final = ("google.adk.", "google.genai.types", "fastapi.openapi.models")
"""Where the models and enumerations that actions can hold are defined."""

_NAME: Final = re.compile(r"[A-Z][A-Za-z0-9_]{0,99}")
"""Names of classes; names of functions begin with a lower-case letter."""

_ALIASES: Final = {"type_": "type", "in_": "in"}
"""Fields of security schemes, which pydantic reads by their aliases only."""

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})

_MOST: Final = 1_000_000
"""Values in the actions of one event; a large one counts as several. A pickle can refer
to one value in many places, so a small pickle may expand to more than the memory."""

_LARGE: Final = 128
"""A value counts once more for each of these many bytes."""


class _Record:
    """A stand-in for a model, or for a member of an enumeration."""

    __slots__ = ("args", "fields")

    args: tuple[Any, ...]
    fields: dict[str, Any]

    def __new__(cls, *args: Any) -> Self:
        made = super().__new__(cls)
        made.args, made.fields = args, {}
        return made

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise UnreadableError("a model in it has no fields")
        self.fields = {
            **(state.get("__pydantic_extra__") or {}),
            **state.get("__dict__", {}),
        }


@lru_cache(maxsize=1_000)
def _stand_in(name: str) -> type[_Record]:
    """The stand-in class with this name; no pickle can change it."""
    return type(name, (_Record,), {"__slots__": ()})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        full = f"{module}.{name}"
        if full in _PLAIN:
            found: Callable[..., Any] = _PLAIN[full]
            return found
        if module.startswith(_MODELS) and _NAME.fullmatch(name):
            return _stand_in(name)
        raise UnreadableError(f"its actions hold {full!r}, which is not data")

    def persistent_load(self, pid: Any) -> Any:
        raise UnreadableError(f"its actions refer to {type(pid).__name__}")


def load_actions(pickled: bytes) -> EventActions:
    """The actions in a pickle.

    Raises:
        UnreadableError: it is not a pickle of actions, or holds more than data.
    """
    try:
        loaded = _Unpickler(io.BytesIO(pickled)).load()
        fields = _Plain().form(loaded)
    except UnreadableError:
        raise
    except Exception:  # noqa: BLE001  a broken pickle may raise anything
        raise UnreadableError("its actions are not a readable pickle") from None
    is_other = isinstance(loaded, _Record) and type(loaded).__name__ != "EventActions"
    if is_other or not isinstance(fields, dict):
        raise UnreadableError("its pickle does not hold actions")
    known = EventActions.model_fields.keys()
    if lost := {name for name, value in fields.items() if value} - known:
        names = ", ".join(sorted(map(repr, lost)))
        raise UnreadableError(f"this ADK has no actions {names}")
    configs = fields.get("requested_auth_configs")
    if configs:
        fields["requested_auth_configs"] = _with_aliases(configs)
    try:
        return EventActions.model_validate(
            {name: fields[name] for name in fields.keys() & known}
        )
    except ValueError:
        raise UnreadableError("this ADK cannot read its actions") from None


class _Plain:
    """Converts models to dicts, and members of enumerations to their values."""

    def __init__(self) -> None:
        self._left = _MOST

    def form(self, value: Any) -> Any:
        """A value in its plain form.

        Raises:
            UnreadableError: it consists of too many values.
        """
        if isinstance(value, _Record):
            if value.args:
                self._take(value.args)
                return self.form(value.args[0])
            value = value.fields
        if isinstance(value, dict):
            self._take(value)
            self._take(value.values())
            return {
                key if type(key) is str else self.form(key): item
                if type(item) in _SCALARS
                else self.form(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset):
            self._take(value)
            return type(value)(map(self.form, value))
        return value

    def _take(self, some: Collection[Any]) -> None:
        self._left -= len(some) + sum(map(sys.getsizeof, some)) // _LARGE
        if self._left < 0:
            raise UnreadableError("its actions are too large")


def _with_aliases(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            _ALIASES.get(key, key): _with_aliases(each) for key, each in value.items()
        }
    if isinstance(value, list):
        return list(map(_with_aliases, value))
    return value
