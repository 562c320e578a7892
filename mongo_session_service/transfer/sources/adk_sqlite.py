"""Source: ADK's ``SqliteSessionService``."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from typing_extensions import override

from mongo_session_service.errors import SourceError
from mongo_session_service.transfer import records
from mongo_session_service.transfer.sources import adk_rows, base, sqlite_rows

_SESSIONS_TOGETHER: Final = 250
_ROWS_TOGETHER: Final = 500
_OF_SESSION: Final = (
    " WHERE app_name = ? AND user_id = ? AND session_id = ? ORDER BY timestamp, rowid"
)

_Session = tuple[records.SessionHeader | records.Problem, sqlite_rows.Places]
"""A session, and the places of its events."""


class SqliteSource(base.BaseSource):
    """The sessions of an SQLite file, which is opened read-only.

    Each page is a snapshot, and the old service can continue to write: no query is open
    while items are yielded, since it would block writers. Rows that the service deletes
    before they are read become problems.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens nothing yet; ``path`` may be a ``sqlite:///`` URL as well."""
        text = str(path)
        for scheme in ("sqlite+aiosqlite:///", "sqlite:///"):
            text = text.removeprefix(scheme)
        self._path = Path(text.partition("?")[0])
        self._file: sqlite3.Connection | None = None
        self._at_work = threading.Lock()
        """Held while a thread uses the file, so that it is not closed meanwhile."""

    @property
    def name(self) -> str:
        """The file."""
        return f"ADK's SQLite sessions in {self._path}"

    @override
    async def _open(self) -> None:
        if not self._path.is_file():
            raise SourceError(f"There is no SQLite database at {str(self._path)!r}.")
        with _failures():
            # Several threads use it, but never at the same time.
            self._file = sqlite3.connect(
                f"file:{quote(str(self._path.absolute()))}?mode=ro",
                uri=True,
                check_same_thread=False,
                isolation_level=None,
            )
            self._file.row_factory = sqlite3.Row
            self._file.text_factory = adk_rows.text_of
            self._check_layout()

    def _check_layout(self) -> None:
        columns = [each["name"] for each in self._query("PRAGMA table_info(events)")]
        tables = [
            each["name"]
            for each in self._query("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        if "adk_internal_metadata" in tables or "actions" in columns:
            raise SourceError(
                "This database was written by ADK's DatabaseSessionService: use"
                " `import sql` (SqlSource) with sqlite:///its/path."
            )
        if "sessions" not in tables or "event_data" not in columns:
            message = (
                f"{str(self._path)!r} holds no sessions of ADK's SqliteSessionService."
            )
            raise SourceError(message)

    def _query(self, query: str, *parameters: Any) -> sqlite3.Cursor:
        if self._file is None:
            raise SourceError("The source is not open: use it in `async with`.")
        return self._file.execute(query, parameters)

    @override
    async def totals(self, selection: records.Selection) -> records.Totals:
        with _failures():
            return await asyncio.to_thread(self._count, selection)

    def _count(self, selection: records.Selection) -> records.Totals:
        where, values = _chosen(selection, with_user=True)
        count = f"SELECT count(*) FROM {{}}{where}"
        with self._at_work:
            counts = [
                self._query(count.format(table), *values).fetchone()[0]
                for table in ("sessions", "events")
            ]
        return records.Totals(*counts)

    async def read(
        self, selection: records.Selection = records.EVERYTHING
    ) -> AsyncGenerator[records.Item]:
        """Shared state, then sessions sorted by key, each with its events."""
        with _failures():
            items = self._one_by_one(self._items(selection))
            async with aclosing(base.drawn(items)) as drawing:
                async for item in drawing:
                    yield item

    def _one_by_one(self, items: Iterator[records.Item]) -> Iterator[records.Item]:
        while True:
            with self._at_work:
                item = next(items, None)
            if item is None:
                return
            yield item

    def _items(self, selection: records.Selection) -> Iterator[records.Item]:
        for table in ("app_states", "user_states"):
            where, values = _chosen(selection, with_user=table == "user_states")
            places = self._places(table, where, *values)
            yield from self._read(places, adk_rows.shared_state_of)
        after: tuple[str, ...] | None = ("", "", "")
        while after:
            page, after = self._page(selection, after)
            for header, events in page:
                yield header
                yield from self._read(events, adk_rows.event_of)

    def _page(
        self, selection: records.Selection, after: tuple[str, ...]
    ) -> tuple[list[_Session], tuple[str, ...] | None]:
        """A page of sessions, and its last key."""
        where, values = _chosen(selection, with_user=True)
        page: list[_Session] = []
        last, size = None, 0
        self._query("BEGIN")
        try:
            rows = self._query(
                f"SELECT * FROM sessions{where} AND (app_name, user_id, id) > (?, ?, ?)"
                f" ORDER BY app_name, user_id, id LIMIT {_SESSIONS_TOGETHER}",
                *values,
                *after,
            )
            while size <= base.STATE_TOGETHER and (row := rows.fetchone()):
                last, size = adk_rows.key_of(row), size + len(row["state"])
                header = adk_rows.header_of(dict(row))
                if isinstance(header, records.Problem):
                    page.append((header, sqlite_rows.Places("events")))
                elif selection.takes(header.key, header.update_time):
                    places = self._places("events", _OF_SESSION, *header.key)
                    page.append((header, places))
            rows.close()
        finally:
            self._query("ROLLBACK")
        return page, last

    def _places(self, table: str, where: str, *values: str) -> sqlite_rows.Places:
        places = sqlite_rows.Places(table)
        columns = ", ".join(("rowid", *sqlite_rows.KEYS[table]))
        places.add(self._query(f"SELECT {columns} FROM {table}{where}", *values))
        return places

    def _read(
        self, places: sqlite_rows.Places, read: Callable[[adk_rows.Row], records.Item]
    ) -> Iterator[records.Item]:
        for some in places.parts(_ROWS_TOGETHER):
            marks = ", ".join("?" * len(some.rowids))
            query = f"SELECT rowid AS place, * FROM {places.table} WHERE rowid IN"
            found = self._query(f"{query} ({marks})", *some.rowids)
            for _, item in some.still_in(map(dict, found), read):
                yield item

    @override
    async def _close(self) -> None:
        if self._file is not None:
            # A cancelled call may have abandoned a thread that uses the file.
            self._file.interrupt()
            await asyncio.to_thread(self._shut, self._file)

    def _shut(self, file: sqlite3.Connection) -> None:
        with self._at_work:
            file.close()


def _chosen(selection: records.Selection, *, with_user: bool) -> tuple[str, list[str]]:
    where, values = " WHERE true", []
    chosen = [("app_name", selection.apps)]
    if with_user:
        chosen.append(("user_id", selection.users))
    for column, names in chosen:
        if names:
            where += f" AND {column} IN ({', '.join('?' * len(names))})"
            values += sorted(names)
    return where, values


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        message = f"The SQLite database cannot be read: {error}. {base.REMEDY}"
        raise SourceError(message) from None
