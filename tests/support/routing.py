"""Which commands a mongos sends to one shard, by MongoDB's published rules.

A command on a sharded collection is targeted if its filter holds equality on every
field of the shard key, at its top or in an ``$and``; equality on an embedded document
counts for each of its fields. All else is taken for a broadcast.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

Document = dict[str, Any]

SHARD_KEY = {"_id.app_name": 1, "_id.user_id": 1}
SHARDED = ("sessions", "events", "user_states", "partials", "families")
"""What `docs/operations/sharding.md` has an administrator shard, and by what."""


class Access(NamedTuple):
    """A part of a command that concerns one sharded collection."""

    command: str
    collection: str
    filter: Document

    @property
    def is_targeted(self) -> bool:
        return SHARD_KEY.keys() <= equalities(self.filter).keys()

    @property
    def names_one_user(self) -> bool:
        """Whether every ``_id`` that it asks for is of the same user."""
        ids = self.filter.get("_id")
        bounds = [*_operands(ids)] if isinstance(ids, dict) else []
        users = [(each.get("app_name"), each.get("user_id")) for each in bounds]
        return bool(users) and None not in users[0] and len({*map(repr, users)}) == 1

    @property
    def shape(self) -> str:
        """The command, and by what it finds documents."""
        held = [name for name in SHARD_KEY if name in equalities(self.filter)]
        others = ["$or"] if "$or" in self.filter else list(self.filter)
        # What a session needs is asked for beside all else.
        by = held or [it for it in others if it not in {"_id", "needs"}] or ["nothing"]
        return f"{self.command} {self.collection} by {', '.join(by)}"


BROADCASTS = {
    "aggregate sessions by _id.app_name": "an app's sessions are listed or searched",
    "aggregate user_states by _id.app_name": "with the state of their users",
    "aggregate families by _id.app_name": "by the titles and labels of versions",
    "find sessions by _id.app_name": "an app is erased",
    "delete sessions by _id.app_name": "an app is erased",
    "aggregate events by _id.app_name": "an app is erased",
    "delete user_states by _id.app_name": "an app is erased",
    "delete partials by _id.app_name": "an app is erased",
    "update sessions by _id.app_name": "the turns of an app are ended to erase it",
    "delete events by $or": "sessions of several users are removed together",
    "find sessions by expire_time, _id.session_id, $expr": "what has expired is pruned",
    "aggregate sessions by expire_time, _id.session_id, $expr": "and counted",
    "aggregate sessions by expire_time, _id.session_id": "what expires next is found",
    "find sessions by $or": "what is idle or old is pruned, in any app",
    "aggregate events by $or": "what is idle is pruned, unless it has late events",
    "aggregate sessions by nothing": "the apps are listed, to prune each",
    "count sessions by nothing": "setup asks whether the collection is large",
    "count events by nothing": "setup asks whether the collection is large",
    "update sessions by turn.holder.token": "all turns of a process are renewed",
    "aggregate sessions by revision, expire_time, ttl": "all who wait look for turns",
}
"""Commands that concern many users, and for what they are sent."""

_OF_SEVERAL_SESSIONS = "update sessions by turn.holder.token"
"""Of these, the one for which it is chance if all are of one user."""


def broadcast_to_one(access: Access) -> bool:
    """Whether every shard is asked for what one user has, or for an unknown reason."""
    if access.is_targeted:
        return False
    if access.shape == _OF_SEVERAL_SESSIONS:
        return False
    return access.names_one_user or access.shape not in BROADCASTS


def accesses(name: str, command: Document) -> Iterator[Access]:
    """Each part of a command that concerns a sharded collection."""
    collection = command.get(name)
    if name == "aggregate":
        yield from _of_pipeline(collection, command["pipeline"])
        return
    for filter_ in _filters(name, command):
        if collection in SHARDED:
            yield Access(name, collection, filter_)


def equalities(filter_: Document) -> Document:
    """The fields that a filter compares with one value each, by their paths."""
    found: Document = {}
    for path, value in filter_.items():
        if path == "$and":
            for each in value:
                found |= equalities(each)
        elif not path.startswith("$"):
            found |= _equality(path, value)
    return found


def _equality(path: str, value: Any) -> Document:
    if not isinstance(value, dict):
        return {path: value}
    if "$eq" in value:
        return _equality(path, value["$eq"])
    if any(name.startswith("$") for name in value):
        return {}
    return {f"{path}.{name}": each for name, each in value.items()}


def _filters(name: str, command: Document) -> list[Document]:
    match name:
        case "insert":
            # Those of partials are encoded already.
            return [{"_id": {**each["_id"]}} for each in command["documents"]]
        case "update":
            return [each["q"] for each in command["updates"]]
        case "delete":
            return [each["q"] for each in command["deletes"]]
        case "find":
            return [command.get("filter", {})]
        case "count" | "distinct" | "findAndModify":
            return [command.get("query", {})]
    return []


def _of_pipeline(collection: Any, pipeline: list[Document]) -> Iterator[Access]:
    if any("$changeStream" in stage for stage in pipeline):
        return  # it reads the oplog of every shard
    if collection in SHARDED:
        first = pipeline[0].get("$match", {}) if pipeline else {}
        yield Access("aggregate", collection, first)
    for stage in pipeline:
        if "$unionWith" in stage:
            inner = stage["$unionWith"]
            yield from _of_pipeline(inner["coll"], inner["pipeline"])
        if "$lookup" in stage:
            inner = stage["$lookup"]
            yield from _of_pipeline(inner["from"], [])


def _operands(ids: Document) -> Iterator[Any]:
    for operator, operand in ids.items():
        yield from operand if operator == "$in" else [operand]
