"""Rows of an SQLite file that is in use: its writers are not kept waiting.

They cannot write while a query is under way, and give up after some seconds, while what
a source has read may wait for as long as it takes to be stored. So it is found out at
one moment which rows there are, and they are read some at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator
from typing import Any, Final

from mongo_session_service.transfer.rows import Row

_TOGETHER: Final = 500


async def rows_apart(
    sql: Any, connection: Any, table: Any, query: Any
) -> AsyncGenerator[Row]:
    """The rows that a query of one table finds now, in its order.

    It ends the transaction. Rows that are deleted meanwhile are left out.
    """
    place = sql.literal_column("rowid")
    found = await connection.execute(
        query.with_only_columns(place, maintain_column_froms=True)
    )
    places = array("q", found.scalars())
    await connection.rollback()
    return _at(sql, connection, sql.select(place.label("place"), table), places)


async def _at(
    sql: Any, connection: Any, query: Any, places: array[int]
) -> AsyncGenerator[Row]:
    for start in range(0, len(places), _TOGETHER):
        some = places[start : start + _TOGETHER]
        those = query.where(sql.literal_column("rowid").in_(some.tolist()))
        found = await connection.execute(those)
        names = list(found.keys())
        rows = {row[0]: dict(zip(names, row, strict=True)) for row in found}
        for place in some:
            if place in rows:
                yield rows[place]
