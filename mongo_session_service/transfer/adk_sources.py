"""Sources: ADK's own services on SQL databases, on SQLite files and on MongoDB.

Drivers return JSON and time columns in different forms, so each form is accepted: text,
parsed, or a number of seconds.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    closing,
    contextmanager,
)
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from google.adk.events.event import Event
from typing_extensions import override

from mongo_session_service.codec.bson_values import is_unicode
from mongo_session_service.codec.hooks import NO_HOOKS
from mongo_session_service.errors import (
    InvalidInputError,
    SourceError,
    without_passwords,
)
from mongo_session_service.model.limits import DEFAULT
from mongo_session_service.model.records import Document, SessionKey, session_key
from mongo_session_service.storage.clients import ConnectionSettings, open_client
from mongo_session_service.storage.database import LatestWrite, ServerClock
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query
from mongo_session_service.transfer.sources import (
    EVERYTHING,
    BaseSource,
    Item,
    MalformedError,
    Problem,
    Selection,
    SessionHeader,
    SharedState,
    run_in_thread,
    scan_documents,
    seconds,
    session_text,
    shared_states,
    type_name,
    validated_event,
)

Result = TypeVar("Result")
Row = Mapping[str, Any]


def key_of_row(row: Row, name: str = "id") -> SessionKey:
    """The session key in a row; rows of events name the id differently."""
    ids: list[Any] = [row.get(each) for each in ("app_name", "user_id", name)]
    return SessionKey(*ids)


def _build_or_problem(where: str, build: Callable[[], Result]) -> Result | Problem:
    try:
        return build()
    except (MalformedError, InvalidInputError) as error:
        return Problem(where, str(error))


def shared_state_of(row: Row) -> SharedState | Problem:
    empty = SharedState(row["app_name"], row.get("user_id"), {})
    return _build_or_problem(
        str(empty), lambda: replace(empty, state=json_object(row["state"]))
    )


def header_of(row: Row) -> SessionHeader | Problem:
    key = key_of_row(row)

    def header() -> SessionHeader:
        session_key(*key)
        return SessionHeader(
            key,
            json_object(row.get("state")),
            update_time=_epoch(row.get("update_time")),
            create_time=_epoch(row["create_time"]) if "create_time" in row else None,
        )

    return _build_or_problem(session_text(key), header)


def event_of(where: str, data: Any, time: Any, **ids: str) -> Event | Problem:
    """The event that a store has as JSON, with its time and ids, if any, beside it."""

    def event() -> Event:
        beside = None if time is None else _epoch(time)
        fields = {"timestamp": beside, **json_object(data), **ids}
        found = validated_event(fields)
        found.timestamp = _epoch(found.timestamp)
        if beside is not None and abs(found.timestamp - beside) > _ZONES:
            raise MalformedError("its time is another one in its JSON than beside it")
        return found

    return _build_or_problem(where, event)


def _epoch(value: Any) -> float:
    """A time as seconds since 1970, also if it is a number of a smaller unit.

    ADK for JavaScript and for Java count milliseconds.
    """
    found = seconds(value)
    while _LATEST < abs(found) < _ODD:
        found /= 1000
    return found


def json_object(value: Any) -> dict[str, Any]:
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value if isinstance(value, bytes) else value.encode())
        except UnicodeError:
            raise MalformedError("it holds text that is not UTF-8") from None
        except (ValueError, RecursionError):
            raise MalformedError("it holds broken JSON") from None
    if not isinstance(value, dict):
        raise MalformedError(f"a JSON object was expected, not {type_name(value)}")
    return value


STATE_TOGETHER: Final = 4_000_000
"""Characters of state read at once, beyond which a page of sessions ends early."""

_DRIVERS: Final = {
    "sqlite": "aiosqlite",
    "postgresql": "asyncpg",
    "mysql": "aiomysql",
    "mariadb": "aiomysql",
}
_BLOCKING: Final = ("", "pysqlite", "psycopg2", "pymysql", "mysqldb")
"""Blocking drivers, which an async one replaces."""

_LATEST: Final = 1e11
"""Seconds: the year 5138. As milliseconds that is 1973, before any session."""
_ODD: Final = 1e20
"""No time in nanoseconds is that late: such a number is what a client has made up."""
_ZONES: Final = 86_400.0
"""Seconds by which the time beside an event may differ, as local time does."""

_SESSIONS_TOGETHER: Final = 250
_ROWS_TOGETHER: Final = 500
_STATES_TOGETHER: Final = 25
_KEY: Final = ("app_name", "user_id", "id")
_TABLES: Final = frozenset(("sessions", "events", "app_states", "user_states"))
_METADATA: Final = "adk_internal_metadata"
_REMEDY: Final = "Check that it is the right one and intact, then try again."
"""The advice when a database can be reached but not read."""


def open_engine(url: str) -> tuple[Any, Any]:
    """Return the ``sqlalchemy`` module and an engine, not connected yet."""
    try:
        # An optional dependency: only SQL sources need it.
        import sqlalchemy  # noqa: PLC0415
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

        parsed = sqlalchemy.make_url(url)
        backend, _, driver = parsed.drivername.partition("+")
        if driver in _BLOCKING and backend in _DRIVERS:
            # asyncpg has another name for its TLS option.
            options = {
                "ssl" if name == "sslmode" else name: value
                for name, value in parsed.query.items()
            }
            driver = f"{backend}+{_DRIVERS[backend]}"
            parsed = parsed.set(drivername=driver, query=options)
        return sqlalchemy, create_async_engine(parsed, hide_parameters=True)
    except ImportError as error:
        name = error.name or "greenlet"  # SQLAlchemy names it in its message alone
        is_ours = name in {"sqlalchemy", "greenlet", "aiosqlite", "asyncpg"}
        extra = ", or 'mongo-session-service[sql]'" if is_ours else ""
        message = (
            f"This database needs the package {name!r}: pip install {name}{extra}."
        )
        raise SourceError(message) from None
    except Exception as error:  # noqa: BLE001  any error may quote the password
        scheme = url.partition(":")[0]
        raise SourceError(
            f"The database URL cannot be used ({type(error).__name__}, scheme"
            f" {scheme!r}). Expected postgresql://user@host/database or"
            " sqlite:///path/to/file.db, as for ADK's DatabaseSessionService."
        ) from None


async def connect_engine(engine: Any) -> Any:
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415  as above

    try:
        return await engine.connect()
    except DBAPIError as error:
        message = (
            f"The SQL database cannot be opened: {_reason(error.orig)}. Check what its"
            " URL names: user, password, database."
        )
    except OSError as error:
        message = (
            f"The SQL database cannot be reached: {_reason(error)}. Is it running, and"
            " are host and port in the URL right?"
        )
    except (TypeError, ValueError):
        # The driver gets the URL's options as arguments.
        message = "The SQL driver does not know an option in the URL."
    raise SourceError(message)


@contextmanager
def reporting_sql_errors() -> Iterator[None]:
    """Raise database errors as one line, without content of rows."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError  # noqa: PLC0415  as above

    try:
        yield
    except (SQLAlchemyError, OSError, UnicodeError) as error:
        cause = error.orig if isinstance(error, DBAPIError) else error
        message = f"The SQL database cannot be read: {_reason(cause)}. {_REMEDY}"
        raise SourceError(message) from None


def _reason(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def open_file(path: Path) -> sqlite3.Connection:
    """Connect to an SQLite file, so that nothing can be written to it."""
    if not path.is_file():
        shown = without_passwords(str(path))
        raise SourceError(f"There is no SQLite database at {shown!r}.")
    place = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(place, uri=True, check_same_thread=False)


def open_copy(path: Path) -> sqlite3.Connection:
    """Open a copy of an SQLite file as it is now."""
    # A database without a name is in a temporary file that SQLite deletes as soon as
    # it has opened it: nothing of it stays, however this process ends.
    copy = sqlite3.connect("", check_same_thread=False, isolation_level=None)
    try:
        with closing(open_file(path)) as file:
            file.backup(copy)
        # SQLite stores any bytes: text that is no UTF-8 fails later, by its row.
        copy.text_factory = lambda it: it.decode("utf-8", "surrogateescape")
    except BaseException as error:
        copy.close()
        if not isinstance(error, sqlite3.Error):
            raise
        raise SourceError(
            f"The SQLite database cannot be copied to a temporary file: {error}."
            f" {_REMEDY}"
        ) from None
    return copy


class SqlSource(BaseSource):
    """The sessions of a SQL database, read a page of sessions at a time.

    Each page is a snapshot, and the old service can continue to write. An SQLite file
    is copied first, as :class:`SqliteSource` does.
    """

    def __init__(self, url: str) -> None:
        """Connects to nothing yet.

        Args:
            url: As for ``DatabaseSessionService``; without a driver, one is chosen.

        Raises:
            SourceError: the URL is invalid, or a package for it is not installed.
        """
        self._sql, self._engine = open_engine(url)
        self._url = self._engine.url
        if self._is_file:
            self._engine = self._file_engine(lambda: open_file(self._path))
        self._columns: dict[str, dict[str, Any]] = {}
        """The types of each table's columns."""

    @property
    def name(self) -> str:
        shown = self._url.set(query={}).render_as_string(hide_password=True)
        return f"ADK's SQL sessions in {shown}"

    @override
    async def _open(self, exits: AsyncExitStack) -> None:
        exits.push_async_callback(self._engine.dispose)
        if self._is_file:
            open_file(self._path).close()  # here: a driver's thread cannot refuse it
        with reporting_sql_errors():
            connection = await connect_engine(self._engine)
            try:
                self._columns = await connection.run_sync(self._inspect_columns)
                await self._check_layout(connection)
            finally:
                await connection.close()

    @property
    def _is_file(self) -> bool:
        return bool(self._url.get_backend_name() == "sqlite")

    @property
    def _path(self) -> Path:
        return Path(self._url.database or "")

    def _inspect_columns(self, connection: Any) -> dict[str, dict[str, Any]]:
        inspector = self._sql.inspect(connection)
        return {
            table: {each["name"]: each["type"] for each in inspector.get_columns(table)}
            # A view, which is left out here, may have more rows than any file.
            for table in {*_TABLES, _METADATA}.intersection(inspector.get_table_names())
        }

    async def _check_layout(self, connection: Any) -> None:
        if missing := {"sessions", "events"} - self._columns.keys():
            tables = " and ".join(sorted(missing))
            raise SourceError(
                f"The database holds no ADK sessions: it has no table {tables}. Is it"
                " the right database?"
            )
        times = self._columns["sessions"].get("update_time")
        if isinstance(times, self._sql.REAL):
            raise SourceError(
                "This database was written by ADK's SqliteSessionService: use"
                " `import sqlite` (SqliteSource) with its path."
            )
        if _METADATA in self._columns:
            table = self._table(_METADATA)
            query = self._sql.select(table.c.value)
            query = query.where(table.c.key == "schema_version")
            version = (await connection.execute(query)).scalar()
        else:
            version = "0" if "actions" in self._columns["events"] else "unknown"
        if version == "0" and await self._is_of_go(connection):
            raise SourceError(
                "This database was written by ADK for Go, whose events have their"
                " actions as JSON. It is not read, and `adk migrate session` would"
                " leave out these actions, and with them each change of state. See"
                " docs/guide/importing.md#from-adk-for-other-languages."
            )
        if version == "0":
            raise SourceError(
                "This database has schema version 0, with the pickles of google-adk"
                " 1.x, which are not read. Convert it with ADK's own command, `adk"
                " migrate session --source_db_url OLD --dest_db_url NEW`, and import"
                " NEW. See docs/guide/importing.md#from-google-adk-1x."
            )
        if version != "1" or "event_data" not in self._columns["events"]:
            raise SourceError(
                f"The database has ADK's schema version {version}, which this release"
                " cannot read; it reads 1."
            )

    async def _is_of_go(self, connection: Any) -> bool:
        """Whether events have JSON where ADK for Python has pickles."""
        actions = self._table("events").c.actions
        query = self._sql.select(actions).where(actions.is_not(None))
        found = (await connection.execute(query.limit(_ROWS_TOGETHER))).scalars()
        return any(isinstance(it, dict) or it[:1] in ("{", b"{") for it in found)

    def _table(self, name: str) -> Any:
        columns = [self._sql.column(each) for each in self._columns[name]]
        return self._sql.table(name, *columns)

    @override
    async def count_events(self, selection: Selection) -> int | None:
        if selection.since is not None or selection.sessions:
            return None
        with reporting_sql_errors():
            async with self._engine.connect() as connection:
                events = self._select(self._table("events"), selection).subquery()
                counting = self._sql.select(self._sql.func.count()).select_from(events)
                return int((await connection.execute(counting)).scalar_one())

    def _select(self, table: Any, selection: Selection) -> Any:
        query = self._sql.select(table)
        if selection.apps:
            query = query.where(table.c.app_name.in_(selection.apps))
        if selection.users and table.name != "app_states":
            query = query.where(table.c.user_id.in_(selection.users))
        return query

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        with reporting_sql_errors():
            async with self._engine_to_read() as engine:
                for part in (self._shared_states, self._pages):
                    async with aclosing(part(engine, selection)) as items:
                        async for item in items:
                            yield item

    def _file_engine(self, opened: Callable[[], sqlite3.Connection]) -> Any:
        """An engine with one connection, which cannot write to the SQLite file."""
        from aiosqlite import Connection  # noqa: PLC0415  as above
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415

        return create_async_engine(
            "sqlite+aiosqlite://",
            async_creator=lambda: Connection(opened, _ROWS_TOGETHER),
            poolclass=self._sql.StaticPool,
            hide_parameters=True,
        )

    @asynccontextmanager
    async def _engine_to_read(self) -> AsyncIterator[Any]:
        if not self._is_file:
            yield self._engine
            return
        copy = await run_in_thread(lambda: open_copy(self._path))
        engine = self._file_engine(lambda: copy)
        try:
            yield engine
        finally:
            await engine.dispose()

    async def _shared_states(
        self, engine: Any, selection: Selection
    ) -> AsyncGenerator[Item]:
        for name in ("app_states", "user_states"):
            if name in self._columns and not selection.sessions:
                query = self._select(self._table(name), selection)
                async with (
                    engine.connect() as connection,
                    aclosing(_stream_rows(connection, query)) as rows,
                ):
                    async for row in rows:
                        yield shared_state_of(row)

    async def _pages(self, engine: Any, selection: Selection) -> AsyncGenerator[Item]:
        after: tuple[str, ...] | None = ()
        while after is not None:
            async with engine.connect() as connection:
                if not self._is_file:
                    # A snapshot, so that a session's header and events are consistent.
                    level = "REPEATABLE READ"
                    await connection.execution_options(isolation_level=level)
                page = await self._page(connection, selection, after)
                after = tuple(page[-1][name] for name in _KEY) if page else None
                sessions = self._sessions(connection, page, selection)
                async with aclosing(sessions) as found:
                    async for item in found:
                        yield item

    async def _page(
        self, connection: Any, selection: Selection, after: tuple[str, ...]
    ) -> list[Row]:
        table = self._table("sessions")
        key = [table.c[name] for name in _KEY]
        query = self._select(table, selection)
        # SQLite may keep rows without a name, which nothing sorts after.
        query = query.where(*(each.is_not(None) for each in key))
        if after:
            found = self._sql.tuple_(*map(self._in_query, after))
            query = query.where(self._sql.tuple_(*key) > found)
        query = query.order_by(*key).limit(_SESSIONS_TOGETHER)
        page: list[Row] = []
        size = 0
        async with aclosing(_stream_rows(connection, query, _STATES_TOGETHER)) as rows:
            async for row in rows:
                page.append(row)
                size += len(row["state"] or "")
                if size > STATE_TOGETHER:
                    break
        return page

    def _in_query(self, value: Any) -> Any:
        """A value of a row as a query takes it, also if it is text that is no UTF-8."""
        if not isinstance(value, str) or is_unicode(value):
            return value
        raw = self._sql.literal(value.encode("utf-8", "surrogateescape"))
        return self._sql.cast(raw, self._sql.Text)

    async def _sessions(
        self, connection: Any, page: list[Row], selection: Selection
    ) -> AsyncGenerator[Item]:
        wanted: dict[SessionKey, SessionHeader] = {}
        for row in page:
            header = header_of(row)
            if not isinstance(header, SessionHeader):
                yield header
            elif selection.takes(header.key, header.update_time):
                wanted[header.key] = header
        if wanted:
            query = self._events_query([*wanted])
            async with aclosing(_stream_rows(connection, query)) as rows:
                async for owner, event in _events_in_order(rows):
                    if owner in wanted:  # this is its first event
                        yield wanted.pop(owner)
                    yield event
        await connection.rollback()
        for left in wanted.values():
            yield left

    def _events_query(self, keys: list[SessionKey]) -> Any:
        table = self._table("events")
        key = [table.c[name] for name in SessionKey._fields]
        order = (*key, table.c.timestamp, self._tie_breaker(table))
        query = self._sql.select(table).order_by(*order)
        return query.where(self._sql.tuple_(*key).in_([tuple(each) for each in keys]))

    def _tie_breaker(self, events: Any) -> Any:
        """The column that orders events with the same time."""
        return events.c.id


async def _stream_rows(
    connection: Any, query: Any, together: int = _ROWS_TOGETHER
) -> AsyncGenerator[Row]:
    """Yield the rows of a query, with only so many in memory at once."""
    options = query.execution_options(yield_per=together)
    # In a generator of its own, which aclosing ends before its connection is closed.
    async with connection.stream(options) as result:
        async for row in result.mappings():
            yield dict(row)


async def _events_in_order(
    rows: AsyncIterator[Row],
) -> AsyncGenerator[tuple[SessionKey, Event | Problem]]:
    """Yield events of one time, in whole seconds perhaps, in the order of their own."""
    tied: list[tuple[SessionKey, Event | Problem]] = []
    before = None
    async for row in rows:
        key = key_of_row(row, "session_id")
        if before != (key, row["timestamp"]):
            for each in sorted(tied, key=_own_time):
                yield each
            tied, before = [], (key, row["timestamp"])
        ids = {"id": row["id"], "invocation_id": row["invocation_id"]}
        where = f"event {row['id']!r} of {session_text(key)}"
        event = event_of(where, row["event_data"], row["timestamp"], **ids)
        tied.append((key, event))
    for each in sorted(tied, key=_own_time):
        yield each


def _own_time(of: tuple[SessionKey, Event | Problem]) -> float:
    return of[1].timestamp if isinstance(of[1], Event) else 0.0


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
        return f"ADK's SQLite sessions in {self._path}"

    @property
    @override
    def _path(self) -> Path:
        return self._file

    @override
    async def _check_layout(self, connection: Any) -> None:
        events = self._columns.get("events") or {}
        if _METADATA in self._columns or "actions" in events:
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


_LAYOUT: Final = "sessions of ADK's MongoDbSessionService"
_NO_NAME: Final = "-"
"""In place of a database's name that a URI lacks."""
_SESSIONS_IN_PAGE: Final = 50


class AdkMongoDbSource(BaseSource):
    """The sessions of ADK's own MongoDB service."""

    def __init__(
        self, uri: str, *, database: str | None = None, prefix: str = ""
    ) -> None:
        """Connects to nothing yet.

        Args:
            uri: The server.
            database: The database's name; by default the URI's.
            prefix: The prefix of its collection names.

        Raises:
            ConfigurationError: the URI cannot be used.
            SourceError: no database is named.
        """
        client = open_client(uri)
        name = database or client.get_default_database(_NO_NAME).name
        if name == _NO_NAME:
            raise SourceError("Name the source's database, in its URI or as an option.")
        settings = ConnectionSettings(
            name, prefix, transactions=False, hooks=NO_HOOKS, limits=DEFAULT
        )
        self._storage = Storage(client, settings, LatestWrite(), ServerClock())

    @property
    def name(self) -> str:
        return f"{_LAYOUT} in database {self._storage.database.name!r}"

    @override
    async def _open(self, exits: AsyncExitStack) -> None:
        exits.push_async_callback(self._storage.client.close)
        session = await self._storage.find_one(Query("sessions", {}))
        if session is None:
            return
        is_known = isinstance(session["_id"], dict) and "revision" in session
        if not is_known or "id" not in session:
            raise SourceError(
                f"Collection {self._storage.prefix + 'sessions'!r} of database"
                f" {self._storage.database.name!r} does not hold {_LAYOUT}, as"
                " google-adk 2.13 stores them. Another layout is read through the"
                " service that wrote it: `import service` (ServiceSource)."
            )

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        async for each, app_name, user_id in shared_states(self._storage, selection):
            owner = {"app_name": app_name, "user_id": user_id}
            yield shared_state_of({**owner, "state": each.get("state") or {}})
        chosen = selection.matching(session_id="id")
        sessions = Query("sessions", chosen, limit=_SESSIONS_IN_PAGE)
        async for each in scan_documents(self._storage, sessions):
            header = header_of(each)
            if isinstance(header, Problem):
                yield header
            elif selection.takes(header.key, header.update_time):
                yield header
                async for event in self._events(header.key, each):
                    yield event

    async def _events(
        self, key: SessionKey, read: Document
    ) -> AsyncGenerator[Event | Problem]:
        """The events of a session up to the revision at which it was read."""
        log = {**key.id, "revision": {"$lte": read.get("revision")}}
        session = Query("sessions", {"_id": read["_id"]}, fields=("create_time",))
        events = Query("events", log, {"timestamp": 1, "revision": 1})
        found, now = await self._storage.read(events, session, patient=True)
        if [each.get("create_time") for each in now] != [read.get("create_time")]:
            yield Problem(session_text(key), "it was deleted meanwhile")
            return
        for each in found:
            data, time = each.get("event_data"), each.get("timestamp")
            yield event_of(f"event {each['_id']!r}", data, time)
