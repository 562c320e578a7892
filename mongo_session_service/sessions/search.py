"""A search for sessions: what it finds, in which order, and where a page of it begins.

The order is that of creation, which never changes, with ties by user and session id. So
a page that begins after the last one's last session neither repeats nor leaves out any,
whatever is written meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import bson

from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.codec.shapes import INITIAL
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.metadata import check_labels, check_title, label_list
from mongo_session_service.model.validation import check_id

from . import queries
from .conditions import state_conditions
from .queries import Document

MAX_LIMIT: Final = 1000
"""Sessions on a page."""


class Place(NamedTuple):
    """A session's place in the order."""

    create_time: float
    user_id: str
    session_id: str

    @classmethod
    def of(cls, document: Document) -> Self:
        """A stored session's."""
        id_ = document["_id"]
        return cls(document["create_time"], id_["user_id"], id_["session_id"])


@dataclass(frozen=True, slots=True)
class Search:
    """What a caller is looking for, checked."""

    filter: Document
    newest_first: bool

    @property
    def bytes(self) -> bytes:
        """The same for equal searches only."""
        return bson.encode({"filter": self.filter, "newest_first": self.newest_first})

    @property
    def order(self) -> dict[str, int]:
        """The order of what it finds."""
        direction = -1 if self.newest_first else 1
        names = ("create_time", "_id.user_id", "_id.session_id")
        return dict.fromkeys(names, direction)

    def stages(
        self, after: Place | None, limit: int, now: float, *, with_state: bool
    ) -> list[Document]:
        """The pipeline that reads a page, which begins after a place."""
        match = {"$and": [self.filter, queries.visible(now), *self._later(after)]}
        return [
            {"$match": match},
            {"$sort": self.order},
            {"$limit": limit},
            {"$project": {INITIAL: 0} if with_state else {INITIAL: 0, "state": 0}},
        ]

    def _later(self, after: Place | None) -> list[Document]:
        """What comes after a place."""
        if after is None:
            return []
        beyond = "$lt" if self.newest_first else "$gt"
        created, user_id, session_id = after
        of_user = {"_id.user_id": user_id, "_id.session_id": {beyond: session_id}}
        # The first bounds the index, the others are for sessions of one moment.
        return [
            {"create_time": {f"{beyond}e": created}},
            {
                "$or": [
                    {"create_time": {beyond: created}},
                    {"_id.user_id": {beyond: user_id}},
                    of_user,
                ]
            },
        ]


def new_search(
    app_name: object,
    user_id: object,
    title: object,
    labels: object,
    where: object,
    *,
    newest_first: bool,
    hooks: Hooks,
) -> Search:
    """The search that a caller asks for; None for what it is not to look at.

    Raises:
        InvalidInputError: an argument is not what it should be.
    """
    wanted: Document = {"_id.app_name": check_id("app_name", app_name)}
    owner = Owner(wanted["_id.app_name"])
    if user_id is not None:
        wanted["_id.user_id"] = check_id("user_id", user_id)
        owner = Owner(owner.app_name, wanted["_id.user_id"])
    if title is not None:
        wanted["title"] = {"$eq": check_title(title)}
    conditions: list[Document] = []
    if labels:
        conditions += [{"labels": {"$eq": each}} for each in _label_list(labels)]
    if where:
        conditions += state_conditions(where, owner, hooks)
    return Search({"$and": [wanted, *conditions]}, bool(newest_first))


def _label_list(labels: object) -> list[dict[str, str]]:
    return label_list(check_labels(labels))


def check_limit(limit: object) -> int:
    """How many sessions a page may have.

    Raises:
        InvalidInputError: it is no number from 1 to ``MAX_LIMIT``.
    """
    is_number = isinstance(limit, int) and not isinstance(limit, bool)
    if not is_number or not 1 <= limit <= MAX_LIMIT:  # type: ignore[operator]
        raise InvalidInputError(f"limit must be a number from 1 to {MAX_LIMIT}.")
    return limit  # type: ignore[return-value]
