"""Stores of every kind that hold what no service of theirs would have written."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bson import ObjectId, encode
from bson.errors import BSONError
from google.adk.events import Event
from google.adk.sessions import InMemorySessionService, Session
from google.adk.sessions.base_session_service import ListSessionsResponse
from pymongo import MongoClient
from pymongo.errors import BulkWriteError

from mongo_session_service import MongoSessionService
from mongo_session_service.transfer import (
    AdkMongoDbSource,
    JsonLinesSource,
    ServiceSource,
    Source,
    SqliteSource,
    SqlSource,
    StoreSource,
)
from mongo_session_service.transfer.export_file import HEADER

APP = "app"
NOON = 1735732800.0


@dataclass
class Talk:
    """A session of a user of its own, as plain fields."""

    user_id: Any
    app_name: Any = APP
    session_id: Any = "s"
    state: Any = field(default_factory=lambda: {"k": "own"})
    user_state: Any = field(default_factory=lambda: {"k": "user's"})
    app_state: Any = None
    create_time: Any = NOON
    update_time: Any = NOON + 1
    more: dict[str, Any] = field(default_factory=dict)
    """Fields of a session that this package's stores and exports have beside these."""
    event: Any = field(
        default_factory=lambda: {
            "id": "e",
            "invocation_id": "i",
            "author": "agent",
            "timestamp": NOON + 1,
            "content": {
                "role": "model",
                "parts": [
                    {"text": "hello"},
                    {"function_response": {"name": "f", "response": {"k": "v"}}},
                ],
            },
            "actions": {"state_delta": {"k": "own"}},
            "custom_metadata": {"k": "v"},
        }
    )

    @property
    def ids(self) -> dict[str, Any]:
        return {
            "app_name": self.app_name,
            "user_id": self.user_id,
            "session_id": self.session_id,
        }


def _put(owner: Any, path: str, value: Any) -> None:
    *owners, last = path.split("/")
    for name in owners:
        owner = owner[int(name)] if isinstance(owner, list) else owner[name]
    owner[last] = value


def _in_event(path: str) -> Callable[[Talk, Any], None]:
    return lambda talk, value: _put(talk.event, path, value)


def _in(name: str) -> Callable[[Talk, Any], None]:
    return lambda talk, value: setattr(talk, name, value)


def _key_of(name: str) -> Callable[[Talk, Any], None]:
    def put(talk: Talk, value: Any) -> None:
        setattr(talk, name, {"k": "own", value: "v"})

    return put


def _deep_in(name: str) -> Callable[[Talk, Any], None]:
    def put(talk: Talk, value: Any) -> None:
        setattr(talk, name, {"k": "own", "deep": [{"k": value}]})

    return put


def _own_app(put: Callable[[Talk, Any], None]) -> Callable[[Talk, Any], None]:
    def put_in_app(talk: Talk, value: Any) -> None:
        talk.app_name = f"app of {talk.user_id}"
        put(talk, value)

    return put_in_app


IDS = ("app_name", "user_id", "session_id")
PLACES: Mapping[str, Callable[[Talk, Any], None]] = {
    **{name: _in(name) for name in (*IDS, "create_time", "update_time")},
    **{
        f"{name} {what}": _own_app(place(name)) if name == "app_state" else place(name)
        for name in ("state", "user_state", "app_state")
        for what, place in (("itself", _in), ("key", _key_of), ("value", _deep_in))
    },
    "title": lambda talk, value: setattr(
        talk, "state", {"k": "own", "__session_metadata__": {"displayName": value}}
    ),
    **{
        f"event {path}": _in_event(path)
        for path in (
            *("id", "invocation_id", "author", "timestamp", "content", "actions"),
            *("content/parts/0/text", "content/parts/1/function_response/response"),
            *("content/parts/1/function_response/response/k", "actions/state_delta"),
            *("actions/state_delta/k", "custom_metadata", "branch", "unknown"),
        )
    },
    "event delta's key": lambda talk, value: talk.event["actions"][
        "state_delta"
    ].update({value: "v"}),
    "event nested key": lambda talk, value: talk.event["custom_metadata"].update(
        {"deep": [{value: "v"}]}
    ),
    "event itself": _in("event"),
    **{
        f"detail {name}": lambda talk, value, name=name: talk.more.update({name: value})
        for name in ("title", "labels", "ttl", "expire_time", "log_begins")
        + ("initial_state",)
    },
}
"""What may hold a hostile value, and how it gets there."""


def talks(values: list[Any]) -> list[tuple[str, Talk]]:
    """A conversation for each place and value, if that can be there at all."""
    made = []
    for name, put in PLACES.items():
        for number, value in enumerate(values):
            talk = Talk(user_id=f"{name} {number:03}")
            with contextlib.suppress(Exception):  # some are no keys, or have no copy
                put(talk, copy.deepcopy(value))
                made.append((name, talk))
    return made


class Where(NamedTuple):
    """Where a store is written."""

    folder: Path
    uri: str
    database: str


_CANNOT_BE_HELD = (TypeError, ValueError, OverflowError, RecursionError)
"""Raised for values that a store of a kind has no form for: they are left out."""

TAKE_NO_TEXT = {
    *("app_name", "user_id", "session_id", "event id", "create_time", "update_time"),
    *("state itself", "user_state itself", "app_state itself", "event itself"),
    *("event timestamp", "event content", "event actions", "event actions/state_delta"),
    *("event content/parts/1/function_response/response", "event custom_metadata"),
    *("event unknown", "detail title", "detail labels", "detail ttl"),
    *("detail expire_time", "detail log_begins", "detail initial_state"),
}
"""Places of ids, and of other types; all else may hold any text."""


def _json(value: Any) -> str:
    return json.dumps(value)


_TABLES = {
    "sessions": "app_name, user_id, id, state, create_time, update_time",
    "app_states": "app_name, state, update_time",
    "user_states": "app_name, user_id, state, update_time",
    "events": "id, app_name, user_id, session_id, invocation_id, timestamp, event_data",
    "adk_internal_metadata": "key, value",
}


def _filled(path: Path, talks: list[Talk], tables: list[str]) -> None:
    """Write an SQLite file whose columns take anything."""
    with sqlite3.connect(path) as file:
        for table in tables:
            file.execute(f"CREATE TABLE {table} ({_TABLES[table]})")
        if "adk_internal_metadata" in tables:
            _insert(file, "adk_internal_metadata", "schema_version", "1")
        for it in talks:
            event = it.event if isinstance(it.event, dict) else {}
            with contextlib.suppress(*_CANNOT_BE_HELD, sqlite3.Error):
                state, user, data = map(_json, (it.state, it.user_state, it.event))
                times = it.create_time, it.update_time
                _insert(file, "sessions", *it.ids.values(), state, *times)
                _insert(file, "user_states", it.app_name, it.user_id, user, NOON)
                if it.app_state is not None:
                    _insert(file, "app_states", it.app_name, _json(it.app_state), NOON)
                row = event.get("id"), *it.ids.values(), event.get("invocation_id")
                _insert(file, "events", *row, event.get("timestamp"), data)
    file.close()


def _insert(file: sqlite3.Connection, table: str, *row: Any) -> None:
    is_text = [isinstance(each, str) for each in row]
    places = ", ".join("CAST(? AS TEXT)" if each else "?" for each in is_text)
    values = [
        str.__str__(each).encode("utf-8", "surrogatepass") if text else each
        for each, text in zip(row, is_text, strict=True)
    ]
    file.execute(f"INSERT INTO {table} VALUES ({places})", values)  # noqa: S608


def sqlite(talks: list[Talk], at: Where) -> Source:
    path = at.folder / "sessions.db"
    _filled(path, talks, [*_TABLES][:-1])
    return SqliteSource(path)


def sql(talks: list[Talk], at: Where) -> Source:
    path = at.folder / "adk.db"
    _filled(path, talks, [*_TABLES])
    return SqlSource(f"sqlite:///{path}")


def jsonl(talks: list[Talk], at: Where) -> Source:
    lines = [HEADER]
    events = 0
    for it in talks:
        owner = {"app_name": it.app_name, "user_id": it.user_id}
        times = {"create_time": it.create_time, "update_time": it.update_time}
        try:
            some = [_json({"user_state": {**owner, "state": it.user_state}})]
            if it.app_state is not None:
                app = {"app_name": it.app_name, "state": it.app_state}
                some.append(_json({"app_state": app}))
            some += [
                _json({"session": {**it.ids, **times, **it.more, "state": it.state}}),
                _json({"event": it.event}),
            ]
        except _CANNOT_BE_HELD:
            continue
        events += 1
        lines += some
    lines.append(_json({"end": {"sessions": events, "events": events}}))
    path = at.folder / "sessions.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode()))
    return JsonLinesSource(path)


def _inserted(
    client: MongoClient[Any], database: str, documents: dict[str, list[Any]]
) -> None:
    for name, some in documents.items():
        kept = []
        for each in some:
            with contextlib.suppress(
                TypeError, ValueError, OverflowError, BSONError, RecursionError
            ):
                encode(each)  # else no document can hold it
                kept.append(each)
        with contextlib.suppress(
            BulkWriteError
        ):  # of those that are too deep, or twice
            client[database][name].insert_many(kept, ordered=False)


def adk_mongodb(talks: list[Talk], at: Where) -> Source:
    documents: dict[str, list[Any]] = {
        name: [] for name in ("sessions", "user_states", "app_states", "events")
    }
    for it in talks:
        session = {"app_name": it.app_name, "user_id": it.user_id, "id": it.session_id}
        times = {"create_time": it.create_time, "update_time": it.update_time}
        event = it.event if isinstance(it.event, dict) else {}
        try:
            state, user_state, data = map(_json, (it.state, it.user_state, it.event))
            app_state = _json(it.app_state)
        except _CANNOT_BE_HELD:
            state, user_state, data = it.state, it.user_state, it.event
            app_state = it.app_state
        documents["sessions"].append(
            {"_id": it.ids, **session, "state": state, "revision": 1, **times}
        )
        owner = {"app_name": it.app_name, "user_id": it.user_id}
        documents["user_states"].append({"_id": owner, "state": user_state})
        if it.app_state is not None:
            documents["app_states"].append({"_id": it.app_name, "state": app_state})
        documents["events"].append(
            {
                "_id": ObjectId(),
                **it.ids,
                "timestamp": event.get("timestamp"),
                "revision": 1,
                "event_data": data,
            }
        )
    with MongoClient(at.uri) as client:
        _inserted(client, at.database, documents)
    return AdkMongoDbSource(at.uri, database=at.database)


class Raw(InMemorySessionService):
    """A service that returns whatever it was given, unchecked."""

    def __init__(self, talks: list[Talk]) -> None:
        super().__init__()
        self._talks = talks

    @staticmethod
    def _session(it: Talk, events: list[Any]) -> Session:
        state = it.state
        if isinstance(state, dict):
            for scope, more in (("user", it.user_state), ("app", it.app_state)):
                if isinstance(more, dict):
                    named = {
                        f"{scope}:{k}" if isinstance(k, str) else k: each
                        for k, each in more.items()
                    }
                    state = state | named
        return Session.model_construct(
            app_name=it.app_name,
            user_id=it.user_id,
            id=it.session_id,
            state=state,
            events=events,
            last_update_time=it.update_time,
        )

    async def list_sessions(self, **_: Any) -> Any:
        sessions = [
            self._session(it, []) for it in self._talks if it.app_name == _["app_name"]
        ]
        return ListSessionsResponse.model_construct(sessions=sessions)

    async def get_session(self, **ids: Any) -> Any:
        for it in self._talks:
            if it.user_id is ids["user_id"] or it.user_id == ids["user_id"]:
                return self._session(it, [_event(it.event)])
        return None


def _event(fields: Any) -> Any:
    """An event with these fields, whatever they are."""
    if not isinstance(fields, dict):
        return fields
    good = Talk("u").event
    event = Event.model_validate(good)
    for name, value in fields.items():
        if value == good.get(name):
            continue
        if name == "actions" and isinstance(value, dict):
            event.actions.state_delta = value["state_delta"]
        elif name == "content" and isinstance(value, dict):
            part, response = event.content.parts  # type: ignore[union-attr, misc]
            part.text = value["parts"][0]["text"]
            answer = value["parts"][1]["function_response"]["response"]
            response.function_response.response = answer  # type: ignore[union-attr]
        else:
            event.__dict__[name] = value
    return event


def service(talks: list[Talk], _: Where) -> Source:
    apps = {str.__str__(it.app_name) for it in talks if isinstance(it.app_name, str)}
    return ServiceSource(Raw(talks), apps)


def store(talks: list[Talk], at: Where) -> Source:
    """This package's own, to which another tool has written."""
    documents: dict[str, list[Any]] = {
        name: [] for name in ("sessions", "user_states", "app_states", "events")
    }
    for it in talks:
        documents["sessions"].append(
            {
                "_id": it.ids,
                "state": it.state,
                "revision": 1,
                "create_time": it.create_time,
                "update_time": it.update_time,
                **it.more,
            }
        )
        owner = {"app_name": it.app_name, "user_id": it.user_id}
        documents["user_states"].append(
            {"_id": owner, "state": it.user_state, "revision": 1}
        )
        if it.app_state is not None:
            app = {"_id": it.app_name, "state": it.app_state, "revision": 1}
            documents["app_states"].append(app)
        documents["events"].append(
            {"_id": {**it.ids, "revision": 1}, "event": it.event}
        )
    documents["app_states"].append({"_id": "other", "state": {}, "revision": 1})
    documents["user_states"] += [{"_id": "odd"}, {"_id": {"app_name": APP}}]
    with MongoClient(at.uri) as client:
        _inserted(client, at.database, documents)
    return StoreSource(MongoSessionService(at.uri, database=at.database))


STORES = {
    each.__name__: each for each in (sqlite, sql, jsonl, adk_mongodb, service, store)
}
