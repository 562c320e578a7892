"""Source: ADK's ``SqliteSessionService``, and a private copy of any SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from typing_extensions import override

from mongo_session_service.errors import SourceError, without_passwords
from mongo_session_service.transfer.source_items import (
    EVERYTHING,
    Item,
    Problem,
    Selection,
    Totals,
)
from mongo_session_service.transfer.sources import adk_rows, base_source

_TABLES: Final = ("app_states", "user_states", "sessions", "events")
_EVENTS_OF_SESSION: Final = (
    "SELECT * FROM events WHERE app_name = ? AND user_id = ? AND session_id = ?"
    " ORDER BY timestamp, rowid"
)


def open_file(path: Path) -> sqlite3.Connection:
    """A connection to an SQLite file that cannot write to it.

    Raises:
        SourceError: there is no such file.
    """
    if not path.is_file():
        shown = without_passwords(str(path))
        raise SourceError(f"There is no SQLite database at {shown!r}.")
    place = f"file:{quote(str(path.absolute()))}?mode=ro"
    file = sqlite3.connect(place, uri=True, check_same_thread=False)
    file.row_factory = sqlite3.Row
    return file


def open_copy(path: Path) -> sqlite3.Connection:
    """A copy of an SQLite file as it is now, which later writers do not change.

    Raises:
        SourceError: it cannot be copied.
    """
    # A database without a name is in a temporary file that SQLite deletes as soon as
    # it has opened it: nothing of it stays, however this process ends.
    copy = sqlite3.connect("", check_same_thread=False, isolation_level=None)
    try:
        with file_failures("copied to a temporary file"):
            with closing(open_file(path)) as file:
                file.backup(copy)
            copy.row_factory = sqlite3.Row
            copy.text_factory = adk_rows.text_of
    except BaseException:
        copy.close()
        raise
    return copy


@contextmanager
def file_failures(done: str = "read") -> Iterator[None]:
    """Raise SQLite's errors as one line, without content of rows."""
    try:
        yield
    except sqlite3.Error as error:
        message = f"The SQLite database cannot be {done}: {error}. {base_source.REMEDY}"
        raise SourceError(message) from None


class SqliteSource(base_source.BaseSource):
    """The sessions of an SQLite file, as they are when reading begins.

    The file is copied first, to a temporary file that needs as much space on disk and
    that no other program can see. The old service can continue to write; unless its
    database is in WAL mode, its writers wait while the copy is made.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens nothing yet; ``path`` may be a ``sqlite:///`` URL as well."""
        text = str(path)
        for scheme in ("sqlite+aiosqlite:///", "sqlite:///"):
            text = text.removeprefix(scheme)
        self._path = Path(text.partition("?")[0])

    @property
    def name(self) -> str:
        """The file."""
        return f"ADK's SQLite sessions in {self._path}"

    @override
    async def _open(self) -> None:
        with file_failures(), closing(open_file(self._path)) as file:
            columns = [
                each["name"] for each in file.execute("PRAGMA table_info(events)")
            ]
            found = file.execute("SELECT name, type FROM sqlite_master")
            types = {each["name"]: each["type"] for each in found}
        if "adk_internal_metadata" in types or "actions" in columns:
            raise SourceError(
                "This database was written by ADK's DatabaseSessionService: use"
                " `import sql` (SqlSource) with sqlite:///its/path."
            )
        # A view may have more rows than any file.
        are_tables = all(types.get(name) == "table" for name in _TABLES)
        if not are_tables or "event_data" not in columns:
            raise SourceError(
                f"{without_passwords(str(self._path))!r} does not hold the tables of"
                " ADK's SqliteSessionService."
            )

    @override
    async def totals(self, selection: Selection) -> Totals:
        where, values = _chosen(selection, with_user=True)

        def count() -> Totals:
            with closing(open_file(self._path)) as file:
                counts = (
                    file.execute(f"SELECT count(*) FROM {table}{where}", values)
                    for table in ("sessions", "events")
                )
                return Totals(*(each.fetchone()[0] for each in counts))

        with file_failures():
            return await base_source.in_thread(count)

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """Shared state, then sessions sorted by key, each with its events."""
        with file_failures():
            async with aclosing(base_source.drawn(self._items(selection))) as items:
                async for item in items:
                    yield item

    def _items(self, selection: Selection) -> Iterator[Item]:
        # The generator owns the copy: a thread that a cancelled reader has abandoned
        # still reads it, and SQLite ends the program if it is closed under a reader.
        with closing(open_copy(self._path)) as copy:
            for table in ("app_states", "user_states"):
                where, values = _chosen(selection, with_user=table == "user_states")
                for row in copy.execute(f"SELECT * FROM {table}{where}", values):
                    yield adk_rows.shared_state_of(dict(row))
            where, values = _chosen(selection, with_user=True)
            order = " ORDER BY app_name, user_id, id"
            for row in copy.execute(f"SELECT * FROM sessions{where}{order}", values):
                header = adk_rows.header_of(dict(row))
                if isinstance(header, Problem):
                    yield header
                elif selection.takes(header.key, header.update_time):
                    yield header
                    for event in copy.execute(_EVENTS_OF_SESSION, header.key):
                        yield adk_rows.event_of(dict(event))


def _chosen(selection: Selection, *, with_user: bool) -> tuple[str, list[str]]:
    where, values = " WHERE true", []
    chosen = [("app_name", selection.apps)]
    if with_user:
        chosen.append(("user_id", selection.users))
    for column, names in chosen:
        if names:
            where += f" AND {column} IN ({', '.join('?' * len(names))})"
            values += sorted(names)
    return where, values
