"""SQLite row identity: rows that existed at the start, distinguished from later ones.

SQLite reuses the rowid of a deleted row for another row, which may belong to another
user, and ``VACUUM`` changes rowids. So a row is found by its rowid and checked by its
key.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from mongo_session_service.model.records import SessionKey
from mongo_session_service.transfer.records import Item, Problem, SharedState, named
from mongo_session_service.transfer.sources.adk_rows import Row

_TOGETHER: Final = 500
_FOUND_TOGETHER: Final = 5_000

OWNER: Final = ("app_name", "user_id", "session_id")
"""The columns that name an event's owner."""

KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "app_states": ("app_name",),
    "user_states": ("app_name", "user_id"),
    "events": (*OWNER, "id"),
}
"""The key columns of each table; those of the owner come first."""

Owner: TypeAlias = tuple[str, ...]
Owned: TypeAlias = tuple[Owner, Item]
"""An item, and the app, user or session that it belongs to."""


def _gone(owner: Owner) -> Problem:
    where = (
        named(SessionKey(*owner))
        if len(owner) == len(OWNER)
        else str(SharedState(owner[0], (*owner, None)[1], {}))
    )
    return Problem(where, "a part of it is missing; was it just deleted?")


@dataclass(slots=True)
class Places:
    """Rows of a table, in order: rowid, owner and hashed key, in 24 bytes each."""

    table: str
    rowids: array[int] = field(default_factory=lambda: array("q"))
    owners: list[Owner] = field(default_factory=list)
    hashes: array[int] = field(default_factory=lambda: array("q"))
    told: set[Owner] = field(default_factory=set)
    """The owners whose rows are known to be gone."""

    def add(self, found: Iterable[tuple[Any, ...]]) -> None:
        """Add rows: each a rowid, followed by its key."""
        for rowid, *key in found:
            owner = tuple(key[: len(OWNER)])
            if self.owners and self.owners[-1] == owner:
                owner = self.owners[-1]
            self.rowids.append(rowid)
            self.owners.append(owner)
            self.hashes.append(hash(tuple(key)))

    def parts(self, together: int) -> Iterator[Places]:
        """The same rows, in parts of this length."""
        for start in range(0, len(self.rowids), together):
            some = slice(start, start + together)
            parts = self.rowids[some], self.owners[some], self.hashes[some]
            yield Places(self.table, *parts, self.told)

    def still_in(
        self, rows: Iterable[Row], read: Callable[[Row], Item]
    ) -> Iterator[Owned]:
        """The items in those rows, found with their ``place``, that are still the same.

        For each owner of others there is one problem.
        """
        there = {row["place"]: row for row in rows}
        names = KEYS[self.table]
        which = zip(self.rowids, self.owners, self.hashes, strict=True)
        for rowid, owner, digest in which:
            row = there.get(rowid, {})
            key = tuple(row.get(name) for name in names)
            if key[: len(OWNER)] == owner and hash(key) == digest:
                yield owner, read(row)
            elif owner not in self.told:
                self.told.add(owner)
                yield owner, _gone(owner)


async def read_apart(
    sql: Any, connection: Any, table: Any, query: Any, read: Callable[[Row], Item]
) -> AsyncGenerator[Owned]:
    """The items in the rows that a query of one table finds now, in its order.

    It ends the transaction first. Problems take the place of rows deleted meanwhile.
    """
    key = [table.c[name] for name in KEYS[table.name]]
    place = sql.literal_column("rowid")
    finding = query.with_only_columns(place, *key, maintain_column_froms=True)
    places = Places(table.name)
    streaming = finding.execution_options(yield_per=_FOUND_TOGETHER)
    async with connection.stream(streaming) as result:
        async for some in result.partitions():
            places.add(some)
    await connection.rollback()
    whole = sql.select(place.label("place"), table)
    for some in places.parts(_TOGETHER):
        found = await connection.execute(whole.where(place.in_(some.rowids)))
        rows = (dict(each) for each in found.mappings())
        for owned in some.still_in(rows, read):
            yield owned
