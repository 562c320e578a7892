"""Privileges: what each feature needs, and the role that grants it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
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
        """True if these privileges, as MongoDB lists them, include it."""
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


_INDEXED: Final = ("sessions", "events", "partials", "families")
_SHARED: Final = ("app_states", "user_states")
_PROGRESS: Final = ("checkpoints", "leases", "dead_letters")
_CHANGE: Final = ("find", "insert", "update")
_EVERY: Final = ("",)
"""The database, with every collection in it."""
_OPLOG: Final = "oplog.rs"

FEATURES: Final[dict[str, dict[tuple[str, ...], tuple[str, ...]]]] = {
    "sessions": {
        ("sessions", "events", "families"): (*_CHANGE, "remove", "listIndexes"),
        _SHARED: _CHANGE,
        ("partials",): ("insert", "remove", "listIndexes"),
        ("metadata",): ("find",),
        _EVERY: ("listCollections",),
    },
    "changes": {
        _EVERY: ("changeStream", "find"),
        ("checkpoints", "leases"): ("insert", "update"),
        ("dead_letters",): ("insert", "update", "remove"),
        (_OPLOG,): ("find", "collStats"),
    },
    "setup": {
        (*_INDEXED, *_SHARED, *_PROGRESS, "metadata"): ("createCollection",),
        _INDEXED: ("createIndex", "listIndexes"),
        ("metadata",): _CHANGE,
        _EVERY: ("listCollections",),
    },
    "import": {("imports",): _CHANGE},
    "erase": {(*_SHARED, "checkpoints", "leases", "imports"): ("remove",)},
    "storage": {
        ("sessions", "user_states", "metadata"): ("find",),
        _EVERY: ("listCollections", "collStats"),
    },
}
"""The actions that each group of features needs on some collections; the help of the
command ``grants`` has what each group is for."""


def needs(features: Iterable[str], database: str, prefix: str = "") -> list[Privilege]:

    def on(collection: str, action: str) -> Privilege:
        if collection == _OPLOG:
            return Privilege(action, "local", collection)
        return Privilege(action, database, collection and f"{prefix}{collection}")

    needed = (each for feature in features for each in FEATURES[feature].items())
    found = (on(where, what) for at, does in needed for where in at for what in does)
    return list(dict.fromkeys(found))


def role_for(
    database: str,
    *,
    prefix: str = "",
    features: Iterable[str] = FEATURES,
    name: str | None = None,
) -> Document:
    """The command that creates a role for a service's user.

    It belongs in the database ``admin``: a role in another database cannot include the
    oplog.

    Args:
        database: The service's database.
        prefix: Its ``collection_prefix``.
        features: What the user has to be able to do, by the names in ``FEATURES``.
        name: The role's name; ``mongo_session_service_DATABASE`` by default.
    """
    actions: dict[tuple[str, str], list[str]] = {}
    for each in needs(features, database, prefix):
        actions.setdefault((each.database, each.collection), []).append(each.action)
    return {
        "createRole": name or f"mongo_session_service_{database}",
        "privileges": [
            {"resource": {"db": database, "collection": collection}, "actions": several}
            for (database, collection), several in actions.items()
        ],
        "roles": [],
    }


def script(created: Document) -> str:
    """A script for mongosh that creates a role, or updates it."""
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
