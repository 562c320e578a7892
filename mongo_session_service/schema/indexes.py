"""Index definitions: every index of the schema, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Index:
    """An index beyond ``_id_``, and the query or promise that it serves."""

    collection: str
    name: str
    keys: tuple[tuple[str, int], ...]
    unique: bool
    serves: str
    sparse: bool = False
    only_with: str | None = None
    """The field that a document needs to be in the index; None if it is in any case."""

    def is_like(self, described: dict[str, Any]) -> bool:
        """Whether a collection has it, by the driver's description of its indexes."""
        there = described.get(self.name)
        return there is not None and (
            [tuple(each) for each in there["key"]] == list(self.keys)
            and bool(there.get("unique")) == self.unique
            and bool(there.get("sparse")) == self.sparse
            and there.get("partialFilterExpression") == self._partial
        )

    @property
    def options(self) -> dict[str, Any]:
        """The options to create it with, beside its keys."""
        partial = self._partial
        return {
            "name": self.name,
            "unique": self.unique,
            "sparse": self.sparse,
            **({} if partial is None else {"partialFilterExpression": partial}),
        }

    @property
    def _partial(self) -> dict[str, Any] | None:
        return None if self.only_with is None else {self.only_with: {"$exists": True}}


_BY_CREATION: Final = (
    ("create_time", 1),
    ("_id.user_id", 1),
    ("_id.session_id", 1),
)

EVENT_ONCE: Final = Index(
    collection="events",
    name="event_id_once_per_session",
    keys=(
        ("_id.app_name", 1),
        ("_id.user_id", 1),
        ("_id.session_id", 1),
        ("event.id", 1),
    ),
    unique=True,
    serves="an event appended twice is stored once, and found by its id",
)

INDEXES: Final = (
    EVENT_ONCE,
    Index(
        collection="sessions",
        name="expire_time",
        keys=(("expire_time", 1),),
        unique=False,
        sparse=True,
        serves="expired sessions are found among any number of sessions",
    ),
    Index(
        collection="sessions",
        name="by_user",
        keys=(
            ("_id.app_name", 1),
            ("_id.user_id", 1),
            ("create_time", 1),
            ("_id.session_id", 1),
        ),
        unique=False,
        serves="a page of a user's sessions, of any number",
    ),
    Index(
        collection="sessions",
        name="by_app",
        keys=(("_id.app_name", 1), *_BY_CREATION),
        unique=False,
        serves="a page of an app's sessions, of any number",
    ),
    Index(
        collection="sessions",
        name="by_title",
        keys=(("_id.app_name", 1), ("title", 1), *_BY_CREATION),
        unique=False,
        only_with="title",
        serves="a page of the sessions that have a title",
    ),
    Index(
        collection="sessions",
        name="by_label",
        keys=(("_id.app_name", 1), ("labels", 1), *_BY_CREATION),
        unique=False,
        only_with="labels",
        serves="a page of the sessions that have a label",
    ),
)
