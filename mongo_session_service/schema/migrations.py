"""Schema migrations: the steps from one version to the next, as data, in order.

A release reads the data of every version before its own. So it is installed first,
everywhere, and the data is migrated afterwards. A migration runs while others read and
write, and may be interrupted: it is repeated from its beginning, and its version is
recorded when all of it is done. From then on, older releases refuse the data when they
start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mongo_session_service.driver.connection import Connection
from mongo_session_service.schema.setup import create_layout
from mongo_session_service.schema.version import refuse_newer


@dataclass(frozen=True, slots=True)
class Migration:
    """One step to a version; repeating it changes nothing."""

    version: int
    summary: str
    apply: Callable[[Connection], Awaitable[None]]


MIGRATIONS: Final = (
    Migration(1, "create the collections, and the index on events", create_layout),
)


class SchemaStatus(NamedTuple):
    """The schema version of a database, and the migrations it lacks."""

    version: int
    """As recorded; 0 if none is."""
    pending: tuple[Migration, ...]


def plan(version: int, migrations: Sequence[Migration]) -> SchemaStatus:
    """Which migrations a database of a version lacks.

    Raises:
        SchemaVersionError: it is of a newer version than any migration's.
    """
    refuse_newer(version, migrations[-1].version)
    return SchemaStatus(
        version, tuple(each for each in migrations if each.version > version)
    )
