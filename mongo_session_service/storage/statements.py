"""Statements and queries: data that describes what is to be written or read, not how.

Collections are named without the service's prefix, as in ``"sessions"``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from mongo_session_service.errors import StorageError, StorageUnavailableError

if TYPE_CHECKING:  # the command line handles an outage without ADK
    from mongo_session_service.model.records import Document


@dataclass(frozen=True, slots=True)
class Query:
    """Query of one collection."""

    collection: str
    filter: Document
    order: int | dict[str, int] | None = None
    """The direction of ``_id``, or of each field to sort by; None for any order."""
    limit: int | None = None
    since: float | None = None
    """The earliest timestamp of an event; looked for after the limit."""
    fields: tuple[str, ...] = ()
    """The fields to read beside the ``_id``; all by default."""
    without: tuple[str, ...] = ()
    """Or the fields not to read."""
    then: tuple[Document, ...] = ()
    """Stages of an aggregation that follow."""

    @property
    def sort(self) -> dict[str, int]:
        """The direction of each field to sort by."""
        return self.order if isinstance(self.order, dict) else {"_id": self.order or 1}

    @property
    def projection(self) -> dict[str, int]:
        """The fields to read or to leave out; empty for all."""
        return dict.fromkeys(self.fields, 1) or dict.fromkeys(self.without, 0)

    def first(self) -> Query:
        """The same query, of the first document alone."""
        return replace(self, limit=1)

    def with_page_size(self, size: int) -> Query:
        """The same query, of so many documents at once, unless it has a limit."""
        return replace(self, order=self.order or 1, limit=self.limit or size)

    def after(self, id_: Any) -> Query:
        """The same query, ordered by ``_id``, behind a document that was read."""
        side = "$lt" if self.order == -1 else "$gt"
        ids = self.filter.get("_id", {})
        return replace(self, filter={**self.filter, "_id": {**ids, side: id_}})


class Insert(NamedTuple):
    """Insert documents, which may be encoded already."""

    collection: str
    documents: Sequence[Any]


class Update(NamedTuple):
    """Change documents."""

    collection: str
    filter: Document
    change: Document | Sequence[Document]
    """Operators, stages, or a document in place of the one that is stored."""
    upsert: bool = False
    many: bool = False
    """Whether all that match are changed, not only one."""
    expected: int | None = None
    """How many must match, or nothing of the batch is written; None for any number."""


class Delete(NamedTuple):
    """Delete documents."""

    collection: str
    filter: Document
    many: bool = False
    """Whether all that match are deleted, not only one."""
    expected: int | None = None
    """How many must match, or nothing of the batch is written; None for any number."""


Statement: TypeAlias = Insert | Update | Delete


class RefusedError(StorageError):
    """A statement did not match as many documents as expected; nothing was written."""


class DuplicateError(RefusedError):
    """Something with the key of an inserted document is stored; nothing was written."""


class LockedError(StorageUnavailableError):
    """Another transaction holds a document; nothing was written."""

    def __init__(self, collection: str = "") -> None:
        super().__init__("Another writer's transaction has locked a document.")
        self.collection = collection
        """The document's collection, if it is known."""


class SnapshotTooOldError(StorageUnavailableError):
    """The requested snapshot time is older than the history that MongoDB keeps."""

    def __init__(self) -> None:
        super().__init__("MongoDB has forgotten the time that was to be read.")


class TooLateError(StorageUnavailableError):
    """The time limit that a caller has set ran out; nothing was written."""
