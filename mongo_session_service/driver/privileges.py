"""Privileges: what each feature needs a MongoDB user to be allowed."""

from __future__ import annotations

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


_SHARED: Final = ("app_states", "user_states")
_PROGRESS: Final = ("checkpoints", "leases", "dead_letters")
_CHANGE: Final = ("find", "insert", "update")
_EVERY: Final = ("",)
"""The database, with every collection in it."""
_OPLOG: Final = "oplog.rs"

FEATURES: Final[dict[str, dict[tuple[str, ...], tuple[str, ...]]]] = {
    "sessions": {
        ("sessions", "events"): (*_CHANGE, "remove", "listIndexes"),
        _SHARED: _CHANGE,
        ("leases",): (*_CHANGE, "remove"),
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
        ("sessions", "events", *_SHARED, *_PROGRESS, "metadata"): ("createCollection",),
        ("sessions", "events"): ("createIndex", "listIndexes"),
        ("metadata",): _CHANGE,
        _EVERY: ("listCollections",),
    },
    "import": {("imports",): _CHANGE},
    "erase": {(*_SHARED, "checkpoints", "leases", "imports"): ("remove",)},
}
"""The actions that each group of features needs on some collections. ``sessions`` are
ADK's methods and what belongs to them, ``changes`` live subscriptions and consumers,
``setup`` creates and migrates, ``erase`` leaves nothing of users and apps. Imports need
``sessions``, too, and erasing ``sessions`` and ``changes``."""


def needs(features: Iterable[str], database: str, prefix: str = "") -> list[Privilege]:
    """The privileges that features need."""

    def on(collection: str, action: str) -> Privilege:
        if collection == _OPLOG:
            return Privilege(action, "local", collection)
        return Privilege(action, database, collection and f"{prefix}{collection}")

    needed = (each for feature in features for each in FEATURES[feature].items())
    found = (on(where, what) for at, does in needed for where in at for what in does)
    return list(dict.fromkeys(found))
