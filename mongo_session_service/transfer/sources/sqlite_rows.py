"""SQLite row identity: rows that were there from the start, told from later ones.

SQLite reuses the rowid of a deleted row for another row, which may belong to another
user, and ``VACUUM`` changes rowids. So a row is found by its rowid and checked by its
key.
"""

from __future__ import annotations

from array import array
from collections.abc import (
    AsyncGenerator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final, NamedTuple

from mongo_session_service.model.records import SessionKey
from mongo_session_service.transfer.records import Item, Problem, SharedState, named
from mongo_session_service.transfer.sources.adk_rows import Row

_TOGETHER: Final = 500
_FOUND_TOGETHER: Final = 5_000


KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "app_states": ("app_name",),
    "user_states": ("app_name", "user_id"),
    "events": ("app_name", "user_id", "session_id", "id"),
}
"""The key columns of each table; those of the owner come first."""

_OF_OWNER: Final = 3
"""Key columns, at most, that name the owner: an app, a user, or a session."""

Owner = tuple[str, ...]


class Gone(NamedTuple):
    """The owner of rows that are not at their rowid any more."""

    owner: Owner

    @property
    def problem(self) -> Problem:
        """The problem to report."""
        where = (
            named(SessionKey(*self.owner))
            if len(self.owner) == _OF_OWNER
            else str(SharedState(self.owner[0], (*self.owner, None)[1], {}))
        )
        return Problem(where, "it is not all there any more; was it deleted just now?")


def item_of(row: Row | Gone, read: Callable[[Row], Item]) -> Item:
    """The item in a row, or the problem if the row is gone."""
    return row.problem if isinstance(row, Gone) else read(row)


class Places:
    """Rows of a table, in order: rowid, owner and hashed key, in 24 bytes each."""

    def __init__(self, table: str) -> None:
        """Empty."""
        self._table = table
        self._rowids = array("q")
        self._owners: list[Owner] = []
        self._hashes = array("q")
        self._told: set[Owner] = set()

    def add(self, found: Iterable[Sequence[Any]]) -> None:
        """Add rows: each a rowid, followed by its key."""
        for rowid, *key in found:
            owner = tuple(key[:_OF_OWNER])
            if self._owners and self._owners[-1] == owner:
                owner = self._owners[-1]
            self._rowids.append(rowid)
            self._owners.append(owner)
            self._hashes.append(hash(tuple(key)))

    def parts(self, together: int) -> Iterator[Places]:
        """The same rows, in parts of this length."""
        for start in range(0, len(self._rowids), together):
            some = slice(start, start + together)
            part = Places(self._table)
            part._rowids = self._rowids[some]
            part._owners = self._owners[some]
            part._hashes = self._hashes[some]
            part._told = self._told
            yield part

    @property
    def rowids(self) -> list[int]:
        """The rowids."""
        return self._rowids.tolist()

    def still_in(self, rows: Iterable[Row]) -> Iterator[Row | Gone]:
        """Those rows, read with their ``place``, that are still the same.

        Each owner of others is returned once, as ``Gone``.
        """
        there = {row["place"]: row for row in rows}
        names = KEYS[self._table]
        for rowid, owner, which in zip(
            self._rowids, self._owners, self._hashes, strict=True
        ):
            row = there.get(rowid, {})
            key = tuple(row.get(name) for name in names)
            if key[:_OF_OWNER] == owner and hash(key) == which:
                yield row
            elif owner not in self._told:
                self._told.add(owner)
                yield Gone(owner)


async def rows_apart(
    sql: Any, connection: Any, table: Any, query: Any
) -> AsyncGenerator[Row | Gone]:
    """The rows that a query of one table finds now, in its order.

    This ends the transaction. A ``Gone`` takes the place of rows deleted meanwhile.
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
    return _at(sql, connection, sql.select(place.label("place"), table), places)


async def _at(
    sql: Any, connection: Any, query: Any, places: Places
) -> AsyncGenerator[Row | Gone]:
    for some in places.parts(_TOGETHER):
        those = query.where(sql.literal_column("rowid").in_(some.rowids))
        found = await connection.execute(those)
        names = list(found.keys())
        for row in some.still_in(dict(zip(names, row, strict=True)) for row in found):
            yield row
