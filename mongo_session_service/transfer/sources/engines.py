"""SQLAlchemy, for those who have it: engines, and its errors in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from mongo_session_service.errors import SourceError
from mongo_session_service.transfer.sources.adk_rows import text_of

from .base import REMEDY

_DRIVERS: Final = {
    "sqlite": "aiosqlite",
    "postgresql": "asyncpg",
    "mysql": "aiomysql",
    "mariadb": "aiomysql",
}
_BLOCKING: Final = ("", "pysqlite", "psycopg2", "pymysql", "mysqldb")
"""Drivers that google-adk 1.x was used with; another reads the same database."""

_EXTRA: Final = "install the extra 'sql', as in pip install '.[sql]'"


def open_engine(url: str) -> tuple[Any, Any]:
    """SQLAlchemy itself, and an engine of it; nothing is connected yet.

    Raises:
        SourceError: it is no URL, or its driver or SQLAlchemy is not installed.
    """
    with _drivers(url):
        # Only who reads SQL databases needs to have it installed.
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
    """The option for TLS has another name, and the same values."""
    return {"ssl" if name == "sslmode" else name: options[name] for name in options}


def _read_any_text(connection: Any, _: Any) -> None:
    connection.driver_connection.text_factory = text_of


@contextmanager
def _drivers(url: str) -> Iterator[None]:
    """Say what is missing or wrong before anything is connected to."""
    try:
        yield
    except ImportError as error:
        is_ours = error.name in {"sqlalchemy", "greenlet", "aiosqlite", "asyncpg"}
        remedy = _EXTRA if is_ours else f"pip install {error.name}"
        message = f"This database needs the package {error.name!r}: {remedy}."
        raise SourceError(message) from None
    except Exception as error:  # noqa: BLE001  any of them may quote the password
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
        SourceError: it cannot be reached, or does not let anybody in.
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
        # What follows the question mark in a URL is the driver's to know.
        message = "The SQL driver does not know an option in the URL."
        raise SourceError(message) from None


@contextmanager
def failures() -> Iterator[None]:
    """Raise a database's errors in one line; what they say of rows stays out."""
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
