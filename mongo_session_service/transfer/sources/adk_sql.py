"""Source: ADK's ``DatabaseSessionService``, schema versions 0 and 1."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from typing_extensions import override

from mongo_session_service.errors import SourceError
from mongo_session_service.model.records import SessionKey
from mongo_session_service.transfer.records import (
    EVERYTHING,
    Item,
    Selection,
    SessionHeader,
    Totals,
)
from mongo_session_service.transfer.sources.adk_rows import (
    Row,
    event_of,
    header_of,
    key_of,
    pickled_event_of,
    shared_state_of,
    text_of,
)
from mongo_session_service.transfer.sources.base import (
    REMEDY,
    STATE_TOGETHER,
    BaseSource,
)
from mongo_session_service.transfer.sources.sqlite_rows import Gone, item_of, rows_apart

_DRIVERS: Final = {
    "sqlite": "aiosqlite",
    "postgresql": "asyncpg",
    "mysql": "aiomysql",
    "mariadb": "aiomysql",
}
_BLOCKING: Final = ("", "pysqlite", "psycopg2", "pymysql", "mysqldb")
"""Blocking drivers, used with google-adk 1.x; an async one replaces them."""

_EXTRA: Final = "pip install 'mongo-session-service[sql]'"


_SESSIONS_TOGETHER: Final = 250
_ROWS_TOGETHER: Final = 500
_STATES_TOGETHER: Final = 25
_KEY: Final = ("app_name", "user_id", "id")
_EVENT_KEY: Final = ("app_name", "user_id", "session_id")


def open_engine(url: str) -> tuple[Any, Any]:
    """The ``sqlalchemy`` module and an engine, which is not connected yet.

    Raises:
        SourceError: the URL is invalid, or a package for it is not installed.
    """
    with _drivers(url):
        # An optional dependency: only SQL sources need it.
        import sqlalchemy  # noqa: PLC0415
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

        parsed = sqlalchemy.make_url(url)
        backend, _, driver = parsed.drivername.partition("+")
        if driver in _BLOCKING and backend in _DRIVERS:
            parsed = parsed.set(drivername=f"{backend}+{_DRIVERS[backend]}")
            parsed = parsed.set(query=_for_asyncpg(parsed.query))
        engine = create_async_engine(parsed, hide_parameters=True)
        if engine.dialect.name == "sqlite":
            sqlalchemy.event.listen(engine.sync_engine, "connect", _read_any_text)
        return sqlalchemy, engine


def _for_asyncpg(options: Mapping[str, Any]) -> dict[str, Any]:
    """URL options for asyncpg, whose TLS option has another name."""
    return {"ssl" if name == "sslmode" else name: options[name] for name in options}


def _read_any_text(connection: Any, _: Any) -> None:
    connection.driver_connection.text_factory = text_of


@contextmanager
def _drivers(url: str) -> Iterator[None]:
    """Explain a missing driver or an invalid URL."""
    try:
        yield
    except ImportError as error:
        is_ours = error.name in {"sqlalchemy", "greenlet", "aiosqlite", "asyncpg"}
        remedy = _EXTRA if is_ours else f"pip install {error.name}"
        message = f"This database needs the package {error.name!r}: {remedy}."
        raise SourceError(message) from None
    except Exception as error:  # noqa: BLE001  any error may quote the password
        scheme = url.partition(":")[0]
        message = (
            f"The database URL cannot be used ({type(error).__name__}, scheme"
            f" {scheme!r}). Expected postgresql://user@host/database or"
            " sqlite:///path/to/file.db, as for ADK's DatabaseSessionService."
        )
        raise SourceError(message) from None


async def connected(engine: Any) -> Any:
    """A connection to the database.

    Raises:
        SourceError: it cannot be reached, or refuses the login.
    """
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  as above

    try:
        return await engine.connect()
    except DBAPIError as error:
        message = (
            f"The SQL database cannot be opened: {_reason(error.orig)}. Check what its"
            " URL says: user, password, database."
        )
        raise SourceError(message) from None
    except OSError as error:
        message = (
            f"The SQL database cannot be reached: {_reason(error)}. Is it running, and"
            " are host and port in the URL right?"
        )
        raise SourceError(message) from None
    except (TypeError, ValueError):
        # The driver gets the URL's options as arguments.
        message = "The SQL driver does not know an option in the URL."
        raise SourceError(message) from None


@contextmanager
def failures() -> Iterator[None]:
    """Raise database errors as one line, without content of rows."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError  # noqa: PLC0415  as above

    try:
        yield
    except (SQLAlchemyError, OSError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        message = f"The SQL database cannot be read: {_reason(cause)}. {REMEDY}"
        raise SourceError(message) from None


def _reason(error: BaseException | None) -> str:
    said = str(error).splitlines()
    return said[0].rstrip(".") if said else type(error).__name__


class SqlSource(BaseSource):
    """The sessions of a SQL database, read a page of sessions at a time.

    Each page is a snapshot, and the old service can continue to write. Rows that it
    deletes from an SQLite file before they are read become problems.
    """

    def __init__(self, url: str, *, timezone: str | None = None) -> None:
        """Connects to nothing yet.

        Args:
            url: As for ``DatabaseSessionService``; without a driver, one is chosen.
            timezone: Where google-adk 1.x ran, such as ``Europe/Rome``: schema version
                0 stores local times. By default this machine's zone. For a database
                that ADK 2 has continued, use ``UTC``.

        Raises:
            SourceError: the URL is invalid, or a package for it is not installed.
        """
        self._sql, self._engine = open_engine(url)
        self._url = self._engine.url
        self._zone = _zone(timezone)
        self._columns: dict[str, list[str]] = {}

    @property
    def name(self) -> str:
        """The database, without its password and options."""
        shown = self._url.set(query={}).render_as_string(hide_password=True)
        return f"ADK's SQL sessions in {shown}"

    @override
    async def _open(self) -> None:
        self._check_path()
        with failures():
            connection = await connected(self._engine)
            try:
                self._columns = await connection.run_sync(self._inspected)
                await self._check_version(connection)
            finally:
                await connection.close()

    @property
    def _is_file(self) -> bool:
        return bool(self._url.get_backend_name() == "sqlite")

    def _check_path(self) -> None:
        # Connecting would create an empty file.
        path = self._url.database
        if self._is_file and not Path(path or "").is_file():
            raise SourceError(f"There is no SQLite database at {path!r}.")

    def _inspected(self, connection: Any) -> dict[str, list[str]]:
        inspector = self._sql.inspect(connection)
        found = {}
        for table in {"sessions", "events", "app_states", "user_states"}.intersection(
            inspector.get_table_names()
        ):
            columns = inspector.get_columns(table)
            found[table] = [column["name"] for column in columns]
            if table == "sessions" and any(
                isinstance(column["type"], self._sql.REAL) for column in columns
            ):
                message = (
                    "This database was written by ADK's SqliteSessionService: use"
                    " `import sqlite` (SqliteSource) with its path."
                )
                raise SourceError(message)
        if "adk_internal_metadata" in inspector.get_table_names():
            found["adk_internal_metadata"] = ["key", "value"]
        return found

    async def _check_version(self, connection: Any) -> None:
        if missing := {"sessions", "events"} - self._columns.keys():
            tables = " and ".join(sorted(missing))
            message = (
                f"The database holds no ADK sessions: it has no table {tables}. Is it"
                " the right database?"
            )
            raise SourceError(message)
        if "adk_internal_metadata" in self._columns:
            table = self._table("adk_internal_metadata")
            query = self._sql.select(table.c.value).where(
                table.c.key == "schema_version"
            )
            version = (await connection.execute(query)).scalar()
        else:
            version = "0" if "actions" in self._columns["events"] else None
        wanted = {"0": "actions", "1": "event_data"}.get(version or "")
        if wanted not in self._columns["events"]:
            message = (
                f"The database has ADK's schema version {version or 'unknown'}, which"
                " this release cannot read; it reads 0 and 1."
            )
            raise SourceError(message)

    def _table(self, name: str) -> Any:
        columns = [self._sql.column(each) for each in self._columns[name]]
        return self._sql.table(name, *columns)

    @override
    async def totals(self, selection: Selection) -> Totals:
        counts = []
        with failures():
            async with self._engine.connect() as connection:
                for name in ("sessions", "events"):
                    query = self._chosen(self._table(name), name, selection)
                    counting = self._sql.select(self._sql.func.count()).select_from(
                        query.subquery()
                    )
                    counts.append((await connection.execute(counting)).scalar_one())
        return Totals(*counts)

    def _chosen(self, table: Any, name: str, selection: Selection) -> Any:
        query = self._sql.select(table)
        if selection.apps:
            query = query.where(table.c.app_name.in_(selection.apps))
        if selection.users and name != "app_states":
            query = query.where(table.c.user_id.in_(selection.users))
        return query

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """Shared state first, then sessions by key, each with its events."""
        with failures():
            for name in ("app_states", "user_states"):
                if name in self._columns:
                    table = self._table(name)
                    query = self._chosen(table, name, selection)
                    async with self._engine.connect() as connection:
                        rows = await self._reading(connection, table, query)
                        async with aclosing(rows) as found:
                            async for row in found:
                                yield item_of(row, shared_state_of)
            after: tuple[str, ...] | None = ()
            while after is not None:
                async with self._engine.connect() as connection:
                    await self._begin(connection)
                    page = await self._page(connection, selection, after)
                    after = tuple(page[-1][name] for name in _KEY) if page else None
                    sessions = self._sessions(connection, page, selection)
                    async with aclosing(sessions) as found:
                        async for item in found:
                            yield item

    async def _begin(self, connection: Any) -> None:
        """Begin a snapshot, so that a session's header and events are consistent."""
        if self._is_file:
            await connection.exec_driver_sql("BEGIN")
        else:
            await connection.execution_options(isolation_level="REPEATABLE READ")

    async def _reading(
        self, connection: Any, table: Any, query: Any
    ) -> AsyncGenerator[Row | Gone]:
        if self._is_file:
            return await rows_apart(self._sql, connection, table, query)
        return self._rows(connection, query)

    async def _rows(
        self, connection: Any, query: Any, together: int = _ROWS_TOGETHER
    ) -> AsyncGenerator[Row]:
        streaming = query.execution_options(yield_per=together)
        async with connection.stream(streaming) as result:
            names = list(result.keys())
            async for some in result.partitions():
                for row in some:
                    yield dict(zip(names, row, strict=True))

    async def _page(
        self, connection: Any, selection: Selection, after: tuple[str, ...]
    ) -> list[Row]:
        table = self._table("sessions")
        key = [table.c[name] for name in _KEY]
        query = self._chosen(table, "sessions", selection)
        if after:
            query = query.where(self._sql.tuple_(*key) > after)
        query = query.order_by(*key).limit(_SESSIONS_TOGETHER)
        page: list[Row] = []
        size = 0
        async with aclosing(self._rows(connection, query, _STATES_TOGETHER)) as rows:
            async for row in rows:
                page.append(row)
                size += len(row["state"] or "")
                if size > STATE_TOGETHER:
                    break
        return page

    async def _sessions(
        self, connection: Any, page: list[Row], selection: Selection
    ) -> AsyncGenerator[Item]:
        wanted: dict[SessionKey, SessionHeader] = {}
        problems = []
        for row in page:
            header = header_of(row, self._session_zone)
            if not isinstance(header, SessionHeader):
                problems.append(header)
            elif selection.takes(header.key, header.update_time):
                wanted[header.key] = header
        current: SessionKey | None = None
        if wanted:
            table = self._table("events")
            query = self._events(table, list(wanted))
            rows = await self._reading(connection, table, query)
            async with aclosing(rows) as found:
                async for each in found:
                    key = (
                        SessionKey(*each.owner)
                        if isinstance(each, Gone)
                        else key_of(each, "session_id")
                    )
                    if key != current:
                        current = key
                        yield wanted.pop(key)
                    yield item_of(each, self._event)
        await connection.rollback()
        for left in wanted.values():
            yield left
        for problem in problems:
            yield problem

    def _event(self, row: Row) -> Item:
        if "event_data" in row:
            return event_of(row)
        return pickled_event_of(row, self._zone)

    def _events(self, table: Any, keys: list[SessionKey]) -> Any:
        key = [table.c[name] for name in _EVENT_KEY]
        return (
            self._sql.select(table)
            .where(self._sql.tuple_(*key).in_([tuple(each) for each in keys]))
            .order_by(*key, table.c.timestamp, table.c.id)
        )

    @property
    def _session_zone(self) -> tzinfo | None:
        """1.x wrote sessions' times by the database's clock, UTC in SQLite."""
        is_local = "actions" in self._columns["events"] and not self._is_file
        return self._zone if is_local else UTC

    @override
    async def _close(self) -> None:
        await self._engine.dispose()


def _zone(name: str | None) -> tzinfo | None:
    if name is None:
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        message = f"There is no time zone {name!r}; expected one like 'Europe/Rome'."
        raise SourceError(message) from None
