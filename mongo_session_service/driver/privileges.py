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


class _Need(NamedTuple):
    """Actions that a feature needs on some collections; on the database, if none."""

    actions: tuple[str, ...]
    collections: tuple[str, ...] = ()
    database: str | None = None
    """The database, if it is not the service's."""


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
