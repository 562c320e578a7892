"""Doctor: read-only checks of a server, its user and the stored data."""

from __future__ import annotations

import re
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Sequence,
)
from dataclasses import dataclass, field
from datetime import UTC
from enum import StrEnum
from functools import partial
from typing import Final

from mongo_session_service import errors
from mongo_session_service.admin.privileges import FEATURES, needs
from mongo_session_service.backend import Stage
from mongo_session_service.model.records import Document
from mongo_session_service.model.wording import duration_text
from mongo_session_service.schema import setup
from mongo_session_service.service import MongoSessionService, backends_of
from mongo_session_service.storage import server
from mongo_session_service.storage.kernel import Storage

_SKEW: Final = 1.0
"""Seconds that clocks may differ: events are dated by this machine's clock."""
_WINDOW: Final = 3600.0
"""Seconds of history below which a full oplog is called small."""
_FULL: Final = 0.9
_REPAIRED: Final = [9, 0, 2]
"""The first of 9 that switches off new paths of change streams, which were faulty."""

_AS_NEEDED: Final = "The first write does that, by a user with privileges for setup."
_AS_REPLICA_SET: Final = (
    "Start mongod with --replSet rs0, then call rs.initiate() once."
)
_GRANT: Final = "Have an administrator run what `mongo-session-service grants` prints."
_GRANT_MORE: Final = (
    "Fine, if this user needs no more than it has: name that, as --for sessions. If"
    f" not: {_GRANT}"
)


class Status(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as well as it could."""
    FAILED = "failed"
    """It does not work, or data is not as it should be."""
    UNKNOWN = "unknown"
    """It could not be checked."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    status: Status
    says: str
    remedy: str | None = None
    """Advice; None if nothing has to be done."""
    lacking: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The privileges that the user lacks, by the feature that needs them."""


def judge_version(release: str) -> Finding:
    """Judge the version of a server that can be used."""
    text = f"MongoDB {release}"
    version = [int(each) for each in re.findall(r"\d+", release)[:3]]
    if [9, 0] <= version < _REPAIRED:
        text = f"{text}, whose change streams are repaired in 9.0.2"
        return Finding("server", Status.WARNING, text, "Upgrade it.")
    return Finding("server", Status.OK, text)


def judge_privileges(
    users: Sequence[str],
    held: Sequence[Document],
    database: str,
    prefix: str,
    features: Iterable[str] = FEATURES,
) -> Finding:
    """Judge whether a user may use some features."""
    check = "privileges"
    if not users:
        text = "access control is off: any client can do anything"
        remedy = "Turn access control on, unless only you can reach it."
        return Finding(check, Status.WARNING, text, remedy)
    user = ", ".join(users)
    lacking: dict[str, tuple[str, ...]] = {}
    for feature in features:
        needed = needs([feature], database, prefix)
        if missing := [str(each) for each in needed if not each.is_among(held)]:
            lacking[feature] = tuple(missing)
    if not lacking:
        text = f"user {user!r} has the privileges for {', '.join(features)}"
        return Finding(check, Status.OK, text)
    text = f"user {user!r} lacks privileges for {', '.join(lacking)}"
    status = Status.FAILED if "sessions" in lacking else Status.WARNING
    remedy = _GRANT if status is Status.FAILED else _GRANT_MORE
    return Finding(check, status, text, remedy, lacking)


def judge_oplog(window: float | None, fullness: float) -> Finding:
    """Judge whether consumers can stop for a while and miss nothing.

    A full oplog, 1.0, drops its oldest entries.
    """
    check = "oplog window"
    if window is None:
        text = "there is no oplog, so changes cannot be watched"
        return Finding(check, Status.FAILED, text, _AS_REPLICA_SET)
    reach = duration_text(window)
    if fullness < _FULL:
        reach = f"{reach}, since it was created; {fullness:.0%} of it is used"
    if fullness < _FULL or window >= _WINDOW:
        return Finding(check, Status.OK, reach)
    text = f"{reach}: a consumer that stops for longer loses history"
    remedy = "Enlarge it with replSetResizeOplog to cover your longest outage."
    return Finding(check, Status.WARNING, text, remedy)


def judge_clock(ahead: float, uncertainty: float) -> Finding:
    if abs(ahead) <= _SKEW + uncertainty:
        bound = abs(ahead) + uncertainty
        text = f"agrees with MongoDB's to within {bound:.3f} s"
        return Finding("clock", Status.OK, text)
    direction = "ahead of" if ahead > 0 else "behind"
    text = f"{abs(ahead):.3f} s {direction} MongoDB's, plus or minus {uncertainty:.3f}"
    remedy = "Synchronise both by NTP; events are dated by this machine's clock."
    return Finding("clock", Status.WARNING, text, remedy)


async def examine(
    service: MongoSessionService, features: Collection[str] = FEATURES
) -> AsyncIterator[Finding]:
    """Checks a service's database, and yields the result of each check.

    If the server cannot be used, nothing else is examined. It creates nothing, not even
    the collections of a service that has never been used.
    It reads no sessions and events: damage is an error of whoever reads them.

    Args:
        service: The service, whose user it examines.
        features: What the user needs privileges for, as named by ``grants``. The oplog
            is looked at for ``changes`` only.

    Raises:
        StorageUnavailableError: MongoDB cannot be reached.
        ConfigurationError: it never can, or not from this event loop.
    """
    # Unchecked: what a call would refuse is a finding.
    opened = await backends_of(service).backend(Stage.OPENED)
    checks = CHECKS | {"privileges": partial(_check_privileges, features=features)}
    if "changes" not in features:
        del checks["oplog window"]
    for name, check in checks.items():
        try:
            finding = await check(opened.storage)
        except errors.NotAuthorizedError as error:
            finding = Finding(name, Status.UNKNOWN, str(error))
        except errors.StorageUnavailableError:
            raise
        except errors.MongoSessionServiceError as error:
            remedy = "Do what the message says, then run this again."
            finding = Finding(name, Status.FAILED, str(error), remedy)
        yield finding
        if check is _check_server and finding.status is Status.FAILED:
            return


async def _check_server(storage: Storage) -> Finding:
    hello = await server.examined_hello(storage)
    await server.check_product(storage, hello)
    server.check_server(hello, transactions=storage.has_transactions)
    build = await storage.command({"buildInfo": 1})
    return judge_version(build["version"])


async def _check_privileges(
    storage: Storage, features: Iterable[str] = FEATURES
) -> Finding:
    # Every user may ask this.
    asking = {"connectionStatus": 1, "showPrivileges": True}
    login = (await storage.command(asking, database="admin"))["authInfo"]
    users = [each["user"] for each in login["authenticatedUsers"]]
    if not users:
        # Refused if access control is on, and only nobody has logged in.
        await storage.command({"find": f"{storage.prefix}metadata", "limit": 1})
    held = login["authenticatedUserPrivileges"]
    database = storage.database.name
    return judge_privileges(users, held, database, storage.prefix, features)


async def _check_version(storage: Storage) -> Finding:
    check, recorded = "schema version", await setup.recorded_version(storage)
    if recorded is None:
        return Finding(check, Status.OK, f"not recorded yet. {_AS_NEEDED}")
    setup.refuse_newer(recorded)
    return Finding(check, Status.OK, f"{recorded}, this release's")


async def _check_indexes(storage: Storage) -> Finding:
    there, missing = await setup.existing(storage), await setup.missing_indexes(storage)
    if not missing:
        return Finding("indexes", Status.OK, "all exist")
    if "sessions" not in there:
        return Finding("indexes", Status.OK, f"not created yet. {_AS_NEEDED}")
    names = ", ".join(f"{each.name} ({each.serves})" for each in missing)
    remedy = "Call setup() as a user who may create indexes, then read its log."
    return Finding("indexes", Status.WARNING, f"missing or different: {names}", remedy)


async def _check_oplog(storage: Storage) -> Finding:
    if storage.is_sharded:
        text = "each shard has its own, which mongos does not show"
        remedy = "Run rs.printReplicationInfo() on each shard."
        return Finding("oplog window", Status.UNKNOWN, text, remedy)
    window = await storage.oplog_window()
    if window is None:
        return judge_oplog(None, 0)
    held = await server.storage_stats(storage, "oplog.rs", "local")
    return judge_oplog(window, held["size"] / held["maxSize"])


async def _check_members(storage: Storage) -> Finding:
    if lost := await server.unreachable_members(storage):
        text = f"not reached: {', '.join(lost)}"
        remedy = "Start each, and let this machine reach it by that name."
        return Finding("members", Status.WARNING, text, remedy)
    return Finding("members", Status.OK, "all are reached")


async def _check_clock(storage: Storage) -> Finding:
    before = time.time()
    hello = await storage.command({"hello": 1}, database="admin")
    after = time.time()
    there = hello["localTime"].replace(tzinfo=UTC).timestamp()
    middle, uncertainty = (before + after) / 2, (after - before) / 2
    return judge_clock(middle - there, uncertainty)


CHECKS: Final[dict[str, Callable[[Storage], Awaitable[Finding]]]] = {
    "server": _check_server,
    "privileges": _check_privileges,
    "clock": _check_clock,
    "schema version": _check_version,
    "indexes": _check_indexes,
    "oplog window": _check_oplog,
    "members": _check_members,
}
