"""What a MongoDB user has to be allowed, feature by feature, and what one lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Self

from mongo_session_service.model.records import Document


class Privilege(NamedTuple):
    """One action on one collection, or on a database as a whole."""

    action: str
    database: str
    collection: str = ""
    """With the prefix; empty for the database and every collection in it."""

    def __str__(self) -> str:
        if not self.collection:
            return f"{self.action!r} on database {self.database!r}"
        return f"{self.action!r} on collection '{self.database}.{self.collection}'"

    def is_among(self, held: Iterable[Document]) -> bool:
        """Whether these privileges, as MongoDB lists them, include it."""
        return any(
            self.action in each["actions"] and self._is_in(each["resource"])
            for each in held
        )

    def _is_in(self, resource: Document) -> bool:
        if resource.get("anyResource"):
            return True
        return resource.get("db") in {"", self.database} and (
            resource.get("collection") in {"", self.collection}
        )


class _Need(NamedTuple):
    """Actions that a feature needs on some collections; on the database, if none."""

    actions: tuple[str, ...]
    collections: tuple[str, ...] = ()
    database: str | None = None
    """Another one than the service's."""


_SHARED: Final = ("app_states", "user_states")
_PROGRESS: Final = ("checkpoints", "leases", "dead_letters")
_CHANGE: Final = ("find", "insert", "update")

FEATURES: Final[dict[str, tuple[_Need, ...]]] = {
    "sessions": (
        _Need((*_CHANGE, "remove", "listIndexes"), ("sessions", "events")),
        _Need(_CHANGE, _SHARED),
        _Need(("find",), ("metadata",)),
        _Need(("listCollections",)),
    ),
    "changes": (
        _Need(("changeStream", "find")),
        _Need(("insert", "update"), ("checkpoints", "leases")),
        _Need(("insert", "update", "remove"), ("dead_letters",)),
        _Need(("find", "collStats"), ("oplog.rs",), "local"),
    ),
    "setup": (
        _Need(
            ("createCollection",),
            ("sessions", "events", *_SHARED, *_PROGRESS, "metadata"),
        ),
        _Need(("createIndex", "listIndexes"), ("sessions", "events")),
        _Need(_CHANGE, ("metadata",)),
        _Need(("listCollections",)),
    ),
    "import": (_Need(_CHANGE, ("imports",)),),
    "erase": (_Need(("remove",), (*_SHARED, "checkpoints", "leases", "imports")),),
}
"""What each group of features needs: ``sessions`` are ADK's methods and what belongs to
them, ``changes`` live subscriptions and consumers, ``setup`` creates and migrates,
``erase`` leaves nothing of users and apps. Imports need ``sessions``, too, and erasing
``sessions`` and ``changes``."""

_REFUSAL: Final = re.compile(
    r'not authorized on (?P<database>\S+) to execute command \{ (?P<command>\w+): "?'
    r'(?P<collection>[^",]*)'
)
_ACTIONS: Final = {
    "$merge": ("find", "insert", "update"),
    "aggregate": ("find", "changeStream", "collStats"),
    "count": ("find",),
    "create": ("createCollection",),
    "createIndexes": ("createIndex",),
    "delete": ("remove",),
    "find": ("find",),
    "findAndModify": ("find", "update", "insert", "remove"),
    "getMore": ("find", "changeStream"),
    "insert": ("insert",),
    "listCollections": ("listCollections",),
    "listIndexes": ("listIndexes",),
    "update": ("update", "insert", "find"),
}


class Refusal(NamedTuple):
    """A command that the server has refused to a user."""

    command: str
    database: str
    collection: str = ""

    @classmethod
    def of(cls, text: str) -> Self | None:
        """What a server's error text is about; None if it does not say."""
        found = _REFUSAL.match(text)
        if found is None:
            return None
        command, collection = found["command"], found["collection"]
        if command == "aggregate" and "{ $merge: {" in text:
            command = "$merge"  # which copies within a collection
        # A command on a database has a number in the place of a name.
        return cls(
            command,
            found["database"],
            "" if re.fullmatch(r"[\d.]+", collection) else collection,
        )

    def __str__(self) -> str:
        where = ".".join(filter(None, (self.database, self.collection)))
        return f"{self.command!r} on {where!r}"

    def lacking(self, prefix: str, held: Sequence[Document]) -> list[Privilege]:
        """Which privileges it needs that are not held, as far as is known."""
        actions = _ACTIONS.get(self.command, ())
        # An aggregation reads other collections of the same feature, too.
        is_wide = self.command == "aggregate" and self.collection
        found: list[Privilege] = []
        for feature in FEATURES:
            needed = needs([feature], self.database, prefix)
            if any(each.collection == self.collection for each in needed):
                found += (
                    each
                    for each in needed
                    if each.action in actions
                    and each.database == self.database
                    and (each.collection == self.collection or is_wide)
                )
        return [each for each in dict.fromkeys(found) if not each.is_among(held)]


def needs(features: Iterable[str], database: str, prefix: str = "") -> list[Privilege]:
    """The privileges that features need."""
    privileges: dict[Privilege, None] = {}
    for need in (each for feature in features for each in FEATURES[feature]):
        for collection in need.collections or ("",):
            own = f"{prefix}{collection}" if collection else ""
            for action in need.actions:
                if need.database is None:
                    privileges[Privilege(action, database, own)] = None
                else:
                    privileges[Privilege(action, need.database, collection)] = None
    return list(privileges)


def role(name: str, privileges: Iterable[Privilege]) -> Document:
    """The command that creates a role with these privileges, and no others.

    It belongs into the database ``admin``: a role elsewhere cannot reach beyond its own
    database, to the oplog.
    """
    actions: dict[tuple[str, str], list[str]] = {}
    for each in privileges:
        actions.setdefault((each.database, each.collection), []).append(each.action)
    return {
        "createRole": name,
        "privileges": [
            {"resource": {"db": database, "collection": collection}, "actions": several}
            for (database, collection), several in actions.items()
        ],
        "roles": [],
    }


def script(created: Document) -> str:
    """A script for mongosh that creates a role, or changes it to what it should be."""
    name = json.dumps(created["createRole"])
    lines = ",\n".join(f"  {json.dumps(each)}" for each in created["privileges"])
    return f"""\
// Run it as an administrator: mongosh "mongodb://admin@host/" grants.js
const admin = db.getSiblingDB("admin");
const privileges = [
{lines},
];
if (admin.getRole({name})) {{
  admin.updateRole({name}, {{ privileges, roles: [] }});
}} else {{
  admin.createRole({{ role: {name}, privileges, roles: [] }});
}}
// Once, for the user of the service, whose URI then ends in authSource=admin:
// admin.createUser({{ user: "sessions", pwd: passwordPrompt(), roles: [{name}] }});
"""
