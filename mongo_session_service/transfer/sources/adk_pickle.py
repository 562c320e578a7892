"""ADK 1.x pickles: event actions read as data, never run.

A pickle names classes to call. Here a name resolves to a data type of the standard
library, or to a stand-in that only records its arguments. No class that a pickle names
is ever imported, and a name outside the lists is refused.
"""

from __future__ import annotations

import datetime as dt
import decimal
import io
import pickle
import pickletools
import re
import sys
import uuid
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

from google.adk.events.event_actions import EventActions

from mongo_session_service.transfer.sources.base import UnreadableError
from mongo_session_service.transfer.sources.limits import check_models

_PLAIN: Final[Mapping[str, Any]] = {
    "builtins.bytearray": lambda content=b"": bytearray(memoryview(content)),
    "builtins.complex": complex,
    "builtins.frozenset": frozenset,
    "builtins.set": set,
    "collections.OrderedDict": dict,
    "datetime.date": dt.date,
    "datetime.datetime": dt.datetime,
    "datetime.time": dt.time,
    "datetime.timedelta": dt.timedelta,
    "datetime.timezone": dt.timezone,
    "decimal.Decimal": decimal.Decimal,
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

_MOST_BYTES: Final = 96_000_000
"""What a pickle may take as objects; documents have 16 MB at most."""

_LARGE: Final = 128
"""A value counts once more for each of these many bytes."""


class _Record:
    """A stand-in for a model, or for a member of an enumeration."""

    __slots__ = ("args", "parts")

    args: tuple[Any, ...]
    parts: tuple[Mapping[Any, Any], Mapping[Any, Any]]
    """Its fields, those unknown apart; no copy, since a pickle may set them often."""

    def __new__(cls, *args: Any) -> Self:
        made = super().__new__(cls)
        made.args, made.parts = args, ({}, {})
        return made

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise UnreadableError("a model in it has no fields")
        self.parts = (state.get("__pydantic_extra__") or {}, state.get("__dict__", {}))


class _Budget:
    """How much the actions of one event may still take."""

    def __init__(self) -> None:
        self._left = _MOST

    def take(self, some: Collection[Any], times: int = 1) -> None:
        """Count some values.

        Raises:
            UnreadableError: there are too many, or they are too large.
        """
        self._left -= len(some) + times * sum(map(sys.getsizeof, some)) // _LARGE
        if self._left < 0:
            raise UnreadableError("its actions are too large")


@lru_cache(maxsize=1_000)
def _stand_in(name: str) -> type[_Record]:
    """The stand-in class with this name; no pickle can change it."""
    return type(name, (_Record,), {"__slots__": ()})


class _Call:
    """Creates data, as long as its arguments do not add up to too much.

    It is not a function: a pickle could set attributes of one, for all later pickles.
    """

    __slots__ = ("_budget", "_create")

    def __init__(self, create: Callable[..., Any], budget: _Budget) -> None:
        self._create = create
        self._budget = budget

    def __call__(self, *args: Any) -> Any:
        self._budget.take(args, times=16)  # a set takes that much more than a list
        return self._create(*args)

    def __setstate__(self, _: Any) -> None:
        raise UnreadableError("its actions would modify a class")


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, budget: _Budget) -> None:
        super().__init__(io.BytesIO(pickled))
        self._budget = budget

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        full = f"{module}.{name}"
        if full == "uuid.UUID":  # protocol 2 needs the class itself
            return uuid.UUID
        if full in _PLAIN:
            return _Call(_PLAIN[full], self._budget)
        if module.startswith(_MODELS) and _NAME.fullmatch(name):
            return _stand_in(name)
        raise UnreadableError(f"its actions hold {full!r}, which is not data")

    def persistent_load(self, pid: Any) -> Any:
        raise UnreadableError(f"its actions refer to {type(pid).__name__}")


class _Opcode(NamedTuple):
    """What an opcode reads, and the memory that it takes."""

    fixed: int
    """Bytes of its argument, or of the length before it."""
    is_counted: bool
    """Whether they are a length."""
    lines: int
    memory: int
    per_byte: int
    """What a byte of its argument takes."""

    @classmethod
    def of(cls, info: pickletools.OpcodeInfo) -> Self:
        """What the standard library says of it."""
        form = info.arg.n if info.arg else 0
        lines = 0
        if form == pickletools.UP_TO_NEWLINE:
            lines = 2 if info.name in {"GLOBAL", "INST"} else 1
        memory = _MEMORY.get(info.name, 80)
        fixed = _LENGTHS.get(form, max(form, 0))
        is_text = "UNICODE" in info.name
        return cls(fixed, form in _LENGTHS, lines, memory, 4 if is_text else 1)


_LENGTHS: Final[Mapping[int, int]] = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_MEMORY: Final[Mapping[str, int]] = {
    **dict.fromkeys(("EMPTY_SET", "FROZENSET"), 240),
    **dict.fromkeys(("REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ", "INST"), 400),
    # As keys, tuples in tuples take the stack: 100,000 of them end the process.
    **dict.fromkeys(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"), _MOST_BYTES // 20_000),
}
_OPCODES: Final = {ord(each.code): _Opcode.of(each) for each in pickletools.opcodes}
_STOP, _PUT, _LONG_BINPUT = b".pr"


def _check_opcodes(pickled: bytes) -> None:
    """Refuse a pickle that would take too much memory, before anything is built.

    The unpickler of the standard library reserves memory for any number of remembered
    values that a pickle names, and for any length.
    """
    at, left, number = 0, _MOST_BYTES, 0
    while (code := pickled[at]) != _STOP:
        opcode = _OPCODES[code]
        begin = end = at + 1
        for _ in range(opcode.lines):
            end = pickled.index(b"\n", end) + 1
        end += opcode.fixed
        if opcode.is_counted:
            end += int.from_bytes(pickled[begin:end], "little")
        number += 1
        left -= opcode.memory + (end - begin) * opcode.per_byte
        index = 0
        if code == _PUT:
            index = int(pickled[begin:end])
        elif code == _LONG_BINPUT:
            index = int.from_bytes(pickled[begin:end], "little")
        if left < 0 or index > number:
            raise UnreadableError("its actions are too large")
        at = end


def load_actions(pickled: bytes) -> EventActions:
    """The actions in a pickle.

    Raises:
        UnreadableError: it is not a pickle of actions, or holds more than data.
    """
    try:
        _check_opcodes(pickled)
        budget = _Budget()
        loaded = _Unpickler(pickled, budget).load()
        fields = _plain(loaded, budget)
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
    check_models(fields)
    configs = fields.get("requested_auth_configs")
    if configs:
        fields["requested_auth_configs"] = _with_aliases(configs)
    try:
        return EventActions.model_validate(
            {name: fields[name] for name in fields.keys() & known}
        )
    except ValueError:
        raise UnreadableError("this ADK cannot read its actions") from None


def _plain(value: Any, budget: _Budget) -> Any:
    """A value with models as dicts, and members of enumerations as their values."""
    if isinstance(value, _Record):
        if value.args:
            budget.take(value.args)
            return _plain(value.args[0], budget)
        for part in value.parts:
            budget.take(part)
        value = {**value.parts[0], **value.parts[1]}
    if isinstance(value, dict):
        budget.take(value)
        budget.take(value.values())
        return {
            key if type(key) is str else _plain(key, budget): item
            if type(item) in _SCALARS
            else _plain(item, budget)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        budget.take(value)
        return type(value)(_plain(item, budget) for item in value)
    return value


def _with_aliases(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            _ALIASES.get(key, key): _with_aliases(each) for key, each in value.items()
        }
    if isinstance(value, list):
        return list(map(_with_aliases, value))
    return value
