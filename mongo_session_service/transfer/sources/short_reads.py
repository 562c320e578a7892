"""Rows of an SQLite file that is in use: its writers are not kept waiting.

They cannot write while a query is under way, and give up after some seconds, while what
a source has read may wait for as long as it takes to be stored. So it is found out at
one moment which rows there are, and they are read some at a time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

from mongo_session_service.transfer.sources.adk_rows import Row

from .sqlite_rows import KEYS, Gone, Places

_TOGETHER: Final = 500
_FOUND_TOGETHER: Final = 5_000


async def rows_apart(
    sql: Any, connection: Any, table: Any, query: Any
) -> AsyncGenerator[Row | Gone]:
    """The rows that a query of one table finds now, in its order.

    It ends the transaction. Whose rows are deleted meanwhile is told in their place.
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
