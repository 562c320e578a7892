"""Index definitions: every index of the schema, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from mongo_session_service.codec.record import FAMILY
from mongo_session_service.model.metadata import CONVERSATION


@dataclass(frozen=True, slots=True)
class Index:
    """An index beyond ``_id_``, and the query or promise that it serves."""

    collection: str
    name: str
    keys: tuple[str, ...]
    """Fields, each in ascending order."""
    serves: str
    unique: bool = False
    sparse: bool = False
    only_with: str | None = None
    """Field that a document must have to be in the index; None if all are in it."""
    expires_after: int | None = None
    """Seconds after its time at which MongoDB removes a document; None for never."""

    def is_like(self, described: dict[str, Any]) -> bool:
        """True if the driver's description of a collection's indexes has it."""
        there = described.get(self.name)
        return there is not None and (
            [tuple(each) for each in there["key"]] == self.directed_keys
            and bool(there.get("unique")) == self.unique
            and bool(there.get("sparse")) == self.sparse
            and there.get("partialFilterExpression") == self._partial
            and there.get("expireAfterSeconds") == self.expires_after
            and "collation" not in there
        )

    @property
    def directed_keys(self) -> list[tuple[str, int]]:
        return [(name, 1) for name in self.keys]

    @property
    def options(self) -> dict[str, Any]:
        given = {
            "partialFilterExpression": self._partial,
            "expireAfterSeconds": self.expires_after,
        }
        return {
            "name": self.name,
            "unique": self.unique,
            "sparse": self.sparse,
            **{name: option for name, option in given.items() if option is not None},
        }

    @property
    def _partial(self) -> dict[str, Any] | None:
        return None if self.only_with is None else {self.only_with: {"$exists": True}}


_OF_USER: Final = ("_id.app_name", "_id.user_id")
_BY_CREATION: Final = {
    "sessions": ("create_time", "_id.user_id", "_id.session_id"),
    "families": ("create_time", "_id.user_id", "_id.family"),
}

EVENT_ONCE: Final = Index(
    collection="events",
    name="event_id_once_per_session",
    keys=("_id.app_name", "_id.user_id", "_id.session_id", "event.id"),
    unique=True,
    serves="an event appended twice is stored once, and found by its id",
)

INDEXES: Final = (
    EVENT_ONCE,
    Index(
        collection="sessions",
        name="expire_time",
        keys=("expire_time",),
        sparse=True,
        serves="expired sessions are found among any number of sessions",
    ),
    Index(
        collection="sessions",
        name="by_user_family",
        keys=(*_OF_USER, FAMILY, "create_time", "_id.session_id"),
        serves="a page of those without versions; the versions of a conversation",
    ),
    *(
        Index(
            collection=collection,
            name=name,
            keys=tuple(dict.fromkeys(("_id.app_name", *owner, *keys))),
            serves="a page of a user's or an app's sessions, and of its conversations",
        )
        for collection, keys in _BY_CREATION.items()
        for name, owner in (("by_user", _OF_USER), ("by_app", ()))
    ),
    Index(
        collection="sessions",
        name="by_turn",
        keys=("turn.since", "_id.app_name", "_id.user_id"),
        only_with="turn.holder",
        serves="the turns that run or are abandoned, among any number of sessions",
    ),
    *(
        Index(
            collection=collection,
            name=f"by_{name.removesuffix('s')}",
            keys=("_id.app_name", name, *keys),
            only_with=name,
            serves=f"a page of what has a {name.removesuffix('s')}",
        )
        for collection, keys in _BY_CREATION.items()
        for name in CONVERSATION
    ),
    Index(
        collection="sessions",
        name="by_waiting",
        keys=("_id.app_name", *_BY_CREATION["sessions"]),
        only_with="waiting",
        serves="a page of the sessions that wait for a person, among any number",
    ),
    Index(
        collection="partials",
        name="time",
        keys=("time",),
        expires_after=600,
        serves="partials of running turns expire by themselves",
    ),
)
