"""What a careless or hostile caller may pass, for every parameter there is.

A public method whose parameters are not in ``VALUES`` fails
``tests/unit/test_hostile_values.py``: add them, and it is fuzzed like the others.
"""

from __future__ import annotations

import enum
import inspect
import math
import os
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import (
    Binary,
    Code,
    DBRef,
    Decimal128,
    Int64,
    MaxKey,
    MinKey,
    ObjectId,
    Regex,
    Timestamp,
)
from bson.raw_bson import RawBSONDocument
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.adk.sessions.base_session_service import GetSessionConfig
from hypothesis import Phase, settings
from hypothesis import strategies as st

from mongo_session_service import Consumer, MongoSessionService, Subscription
from support.strategies import nested, states

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
"""How many calls of each method to try; without it few, and always the same."""

fuzzing = settings(
    derandomize=not EXAMPLES,
    max_examples=EXAMPLES or 5,
    phases=set(Phase) - {Phase.shrink},  # it takes minutes, and they are short
)

BANG = "hunter2"
"""What hostile objects say when they are asked anything."""

FOREIGN = [
    "$regex",
    "$where",
    "$function",
    "$elemMatch",
    "$jsonSchema",
    "$nor",
] + ["$out", "$rename", "$push", "$pull", "$bit", "$mod"]
"""Operators that the service itself has no use for."""

OPERATORS = [*FOREIGN, "$ne", "$set", "$or", "$expr", "$exists", "$gt"]


class Liar(str):
    """A string that says it is another one."""

    __slots__ = ()

    def __str__(self) -> str:
        return "victim"

    __repr__ = __str__
    strip = encode = casefold = lower = __str__  # type: ignore[assignment]

    def __format__(self, spec: str) -> str:
        return "victim"

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash("victim")


class Word(str, enum.Enum):  # noqa: UP042  how it was spelt for twenty years
    """Strings that format as something else."""

    ID = "own"
    KEY = "app:key"


class Grenade:
    """An object that, once it is armed, nothing can be asked."""

    is_armed = False

    @classmethod
    @contextmanager
    def armed(cls) -> Iterator[None]:
        """Have them go off in this block."""
        cls.is_armed = True
        try:
            yield
        finally:
            cls.is_armed = False

    def _asked(self, *_: object) -> Any:
        if self.is_armed:
            raise RuntimeError(BANG)
        return NotImplemented

    __str__ = __format__ = __eq__ = _asked
    __iter__ = __float__ = __int__ = __index__ = __lt__ = _asked
    __hash__ = object.__hash__


OBJECTS: list[Any] = (
    [None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, 10**400, 1.5, -0.0]
    + [math.nan, math.inf, -math.inf, b"own", bytearray(b"own"), b"\xff", 1 + 2j]
    + [{operator: "own"} for operator in OPERATORS]
    + [{"$gt": ""}, {"$where": "sleep(9999) || true"}, {"$in": ["own"]}]
    + [[], {}, ["own"], ("own",), {"own"}, [{"$ne": 1}], {"__proto__": {"a": 1}}]
    + [ObjectId(), Binary(b"own"), Binary(b"\xff", 4), Regex(".*"), re.compile(".*")]
    + [Code("function () { return true }"), DBRef("sessions", 1), Int64(0), MinKey()]
    + [MaxKey(), Timestamp(1, 1), Decimal128("NaN"), RawBSONDocument(b"\5\0\0\0\0")]
    + [datetime.now(UTC), timedelta(days=-1), timedelta.max, uuid.uuid4(), Ellipsis]
    + [object(), Grenade(), ValueError(BANG), iter(()), Word.ID, nested(9999, 1)]
)
"""Of any type but a useful one; some are useful to some parameters."""
objects = st.sampled_from(OBJECTS)

TEXTS: list[str] = (
    ["", " ", "\n", "\0", "own\0", "\0own", "\ud800", "own\udfff", "x" * 4096]
    + ["x" * 4097, "ä" * 4096, "x" * 10**6, "victi", "victim ", " victim", "VICTIM"]
    + [
        "v\N{LATIN SMALL LETTER DOTLESS I}ctim",
        "\uff56ictim",
        "victim\u200b",
        "\u202emitciv",
        "victim/",
        "victim.*",
    ]
    + ["^victim", "%", "%76ictim", "*", "..", "../../victim", "own.state", "_id", "0"]
    + ["null", "None", "true", "app:", "user:k", "temp:k", "{'$ne': null}", "$$ROOT"]
    + ['{"$gt": ""}', "'; return true; //", "<script>", "\r\n\r\ndata: x", "🙂", "é"]
    + ["é", *OPERATORS, Liar("someone"), Liar("own"), Word.ID, Word.KEY]
)
"""Like the victim's, and unlike any id."""
texts = st.sampled_from(TEXTS)

ids = texts | st.text(max_size=20) | objects
numbers = objects | st.integers() | st.floats() | texts

keys = texts.filter(lambda text: type(text) is not Liar) | st.sampled_from(
    [1, None, True, b"k", ("k",), 1.5]
)
bad_states = st.dictionaries(
    keys, objects | st.just("x" * 17_000_000) | texts, max_size=4
)
state = states | bad_states | objects | texts


def assigned(
    make: Callable[[], Any], values: st.SearchStrategy[Any], *paths: str
) -> st.SearchStrategy[Any]:
    """An object one of whose fields was assigned what pydantic would have refused."""

    def build(path: str, value: object) -> Any:
        made = owner = make()
        *owners, name = path.split(".")
        for each in owners:
            owner = getattr(owner, each)
        setattr(owner, name, value)
        return made

    return st.builds(build, st.sampled_from(paths), values)


events = objects | assigned(
    lambda: Event(author="agent"),
    objects | texts | bad_states,
    *Event.model_fields,
    *(f"actions.{name}" for name in EventActions.model_fields),
)
configs = objects | assigned(
    GetSessionConfig, numbers, "num_recent_events", "after_timestamp"
)
sessions = objects | assigned(
    lambda: Session(id="own", app_name="app", user_id="user"),
    objects | texts,
    *Session.model_fields,
    "_storage_update_marker",
)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "app_name": ids,
    "user_id": ids,
    "session_id": ids,
    "new_session_id": ids,
    "event_id": ids,
    "invocation_id": ids,
    "before_invocation_id": ids,
    "state": state,
    "config": configs,
    "session": sessions,
    "event": events,
    "after_revision": numbers,
    "max_bytes": numbers,
    "partials": objects | texts,
    "after_partial": objects | texts | st.tuples(numbers, numbers),
    "before_revision": numbers,
    "at_revision": numbers,
    "revision": numbers,
    "timeout": numbers,
    "wait": numbers,
    "grace": numbers,
    "interrupt": objects | texts,
    "instead_of": ids,
    "families": objects | texts,
    "keep_partial_answer": objects | texts,
    "reason": objects | texts,
    "resume": objects | texts,
    "status": objects | texts,
    "runner": objects | texts,
    "run_arguments": objects,
    "run_config": objects,
    "predicate": objects | texts,
    "name": ids,
    "start": objects | texts,
    "on_history_lost": objects | texts,
    "progress": objects | texts,
    "handler": objects | texts,
    "max_attempts": numbers,
    "concurrency": numbers,
    "transactional": objects,
    "ttl": numbers,
    "expire_time": numbers,
    "title": ids,
    "title_contains": ids | texts,
    "display_name": ids,
    "idle_for": numbers,
    "index": objects | texts,
    "updates": objects | texts,
    "order_by": objects | texts,
    "created_before": numbers | texts,
    "dry_run": objects | texts,
    "labels": state,
    "where": state,
    "waiting": objects | texts,
    "event_ids": objects | texts,
    "replacement": texts,
    "forks": objects | texts,
    "until_caught_up": objects | texts,
    "newest_first": objects | texts,
    "with_state": objects | texts,
    "rewound": objects | texts,
    "limit": numbers,
    "keep_last": numbers,
    "older_than": numbers,
    "page_token": ids,
    "page_size": numbers,
}
"""By the name of the parameter, whatever method has it."""


class FakeRunner:
    """As much of ADK's as a turn needs."""

    app_name = "app"

    async def run_async(self, **_: object) -> AsyncGenerator[Event, None]:
        yield Event(author="agent")


def usual(name: str) -> Any:
    """A good value for a parameter that is needed; made anew for each call."""
    match name:
        case "app_name":
            return "app"
        case "user_id":
            return "user"
        case "session_id" | "event_id" | "name":
            return "own"
        case "revision":
            return 0
        case "timeout" | "wait":
            return 0.05
        case "event":
            return Event(author="agent")
        case "runner":
            return FakeRunner()
        case "handler":
            return lambda _: None
    return None


def parameters(method: Callable[..., object]) -> list[inspect.Parameter]:
    """What callers of a public method pass."""
    return list(inspect.signature(method).parameters.values())[1:]


def methods() -> Iterator[tuple[str, Callable[..., object]]]:
    """Every public method that takes something, by its class and name."""
    for kind in (MongoSessionService, Consumer, Subscription):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and parameters(method):
                yield f"{kind.__name__}.{name}", method
