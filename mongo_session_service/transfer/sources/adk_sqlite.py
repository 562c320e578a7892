"""Source: ADK's ``SqliteSessionService``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typing_extensions import override

from mongo_session_service.errors import SourceError, without_passwords
from mongo_session_service.transfer.sources.adk_sql import SqlSource

_TABLES = frozenset(("app_states", "user_states", "sessions", "events"))


class SqliteSource(SqlSource):
    """The sessions of an SQLite file, as they are when reading begins.

    The file is copied first, to a temporary file that needs as much space on disk and
    that no other program can see. The old service can continue to write; unless its
    database is in WAL mode, its writers wait while the copy is made.
    """

    def __init__(self, path: str | Path) -> None:
        """Opens nothing yet; ``path`` may be a ``sqlite:///`` URL as well.

        Raises:
            SourceError: a package that reads it is not installed.
        """
        scheme, is_url, rest = str(path).partition(":///")
        if is_url and scheme in {"sqlite", "sqlite+aiosqlite"}:
            path = rest.partition("?")[0]
        self._file = Path(path)
        super().__init__("sqlite://")  # a path may hold what means something in a URL

    @property
    def name(self) -> str:
        """The file."""
        return f"ADK's SQLite sessions in {self._path}"

    @property
    @override
    def _path(self) -> Path:
        return self._file

    @override
    async def _check_layout(self, connection: Any) -> None:
        events = self._columns.get("events") or {}
        if "adk_internal_metadata" in self._columns or "actions" in events:
            raise SourceError(
                "This database was written by ADK's DatabaseSessionService: use"
                " `import sql` (SqlSource) with sqlite:///its/path."
            )
        is_whole = self._columns.keys() >= _TABLES
        if not (is_whole and "event_data" in events):
            raise SourceError(
                f"{without_passwords(str(self._path))!r} does not hold the tables of"
                " ADK's SqliteSessionService."
            )

    @override
    def _tie_breaker(self, events: Any) -> Any:
        return self._sql.literal_column("rowid")
