"""A database with people in it, and what hostile calls did there."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from pymongo import MongoClient
from pymongo.monitoring import (
    CommandStartedEvent,
)

from mongo_session_service import MongoSessionService
from support.command_log import QuietListener
from support.hostile_values import FOREIGN

OWN = {"app_name": "app", "user_id": "user", "session_id": "own"}
VICTIMS = [
    ("app", "user", "victim"),
    ("app", "victim", "own"),
    ("victim", "user", "own"),
    ("victim", "victim", "victim"),
]
SESAME = "open sesame"
"""What the victims hold, and other users must not see."""

_RAW: CodecOptions[Any] = CodecOptions(document_class=RawBSONDocument)
_LITERAL = {"$eq", "$literal", "$in"}

Stored = dict[str, dict[bytes, bytes]]
"""Documents as they are, by collection and ``_id``."""


class OperatorsSent(QuietListener):
    """Hears what is sent to the server."""

    def __init__(self) -> None:
        self.commands: list[Mapping[str, Any]] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.commands.append(event.command)

    def foreign_operators(self) -> set[str]:
        """Those in filters, updates and pipelines, except where they are values."""
        found = {name for each in self.commands for name in _operators(each)}
        self.commands.clear()
        return found.intersection(FOREIGN)


def _operators(command: Mapping[str, Any]) -> Iterator[str]:
    yield from _keys(command.get("filter"))
    yield from _keys(command.get("query"))
    yield from _keys(command.get("pipeline"))
    for each in (*command.get("updates", ()), *command.get("deletes", ())):
        yield from _keys(each["q"])
        change = each.get("u", {})
        if isinstance(change, list):
            yield from _keys(change)
            continue
        for operator, paths in change.items():
            yield operator
            if operator.startswith("$"):
                yield from (part for path in paths for part in path.split("."))


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            if key not in _LITERAL:
                yield from _keys(inner)
    elif isinstance(value, list):
        for each in value:
            yield from _keys(each)


class Besieged:
    """The database of a service, its own session and its victims'."""

    def __init__(self, service: MongoSessionService, admin: MongoClient) -> None:
        self.service = service
        self._admin = admin

    async def populate(self) -> None:
        """Create the victims, each with a secret in every scope of its own."""
        for app, user, id_ in VICTIMS:
            is_own = (app, user) == ("app", "user")
            secret = "the same user's" if is_own else SESAME
            state = {"k": secret}
            if user == "victim":
                state["user:k"] = secret
            if app == "victim":
                state["app:k"] = secret
            session = await self.service.create_session(
                app_name=app, user_id=user, session_id=id_, state=state
            )
            actions = EventActions(state_delta={"again": secret})
            event = Event(author=secret, actions=actions)
            await self.service.append_event(session, event)

    async def own_session(self) -> Session:
        """The caller's own session, made anew if it is gone."""
        session = await self.service.get_session(**OWN)
        return session or await self.service.create_session(**OWN)

    def stored(self) -> Stored:
        """All that is stored, to the byte; not what turns say, which comes later."""
        database = self._admin.get_database(self.service.database_name, _RAW)
        names = database.list_collection_names()
        names.remove("partials")
        first, *others = names
        unions = [{"coll": name, "pipeline": _whole(name)} for name in others]
        stages = [*_whole(first), *({"$unionWith": each} for each in unions)]
        stored: Stored = {name: {} for name in names}
        for each in database[first].aggregate(stages):
            id_ = bson.encode({"_id": each["_id"]})
            stored[each["in"]][id_] = each["whole"].raw
        return stored

    @staticmethod
    def sessions(stored: Stored, at: float = 0) -> Iterator[tuple[str, ...]]:
        """The keys of the sessions that are stored, and not expired then."""
        for id_, document in stored["sessions"].items():
            if bson.decode(document).get("expire_time", math.inf) > at:
                yield _owner(bson.decode(id_)["_id"])

    async def read_all(self, owner: tuple[str, ...]) -> None:
        """Read a session in every way there is; what is stored must be readable."""
        app, user, id_ = owner[:3]
        session = await self.service.get_session(
            app_name=app, user_id=user, session_id=id_
        )
        assert session is not None
        listed = await self.service.list_sessions(app_name=app, user_id=user)
        assert id_ in {each.id for each in listed.sessions}
        async with self.service.watch(app, user, id_) as changes:
            snapshot = await anext(changes)
        assert json.loads(snapshot.json_text, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


def _whole(collection: str) -> list[dict[str, Any]]:
    """Stages that have a collection's documents as they are."""
    return [{"$project": {"in": {"$literal": collection}, "whole": "$$ROOT"}}]


def changed(before: Stored, after: Stored) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Collections and owners of documents that are not as they were."""
    for collection in before.keys() | after.keys():
        old, new = before.get(collection, {}), after.get(collection, {})
        for id_ in old.keys() | new.keys():
            if old.get(id_) != new.get(id_):
                yield collection, _owner(bson.decode(id_)["_id"])


def _owner(id_: Any) -> tuple[str, ...]:
    if isinstance(id_, dict):
        names = ("app_name", "user_id", "session_id")
        return tuple(id_[name] for name in names if name in id_)
    return (id_,)
