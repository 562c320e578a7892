"""Private copies of SQLite files, which later writers do not change."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from mongo_session_service.errors import SourceError, without_passwords
from mongo_session_service.transfer.sources.base_source import REMEDY


def open_file(path: Path) -> sqlite3.Connection:
    """A connection to an SQLite file that cannot write to it.

    Raises:
        SourceError: there is no such file.
    """
    if not path.is_file():
        shown = without_passwords(str(path))
        raise SourceError(f"There is no SQLite database at {shown!r}.")
    place = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(place, uri=True, check_same_thread=False)


def open_copy(path: Path) -> sqlite3.Connection:
    """A copy of an SQLite file as it is now.

    Raises:
        SourceError: it cannot be copied.
    """
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
            f" {REMEDY}"
        ) from None
    return copy
