"""What is looked at to tell whether a database is well, and how it is judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from mongo_session_service.driver.privileges import FEATURES, needs
from mongo_session_service.model.wording import counted
from mongo_session_service.schema.indexes import (
    SCHEMA_VERSION,
    Index,
    check_server,
    is_standalone,
)

Document = dict[str, Any]

EXAMINED: Final = 10_000
"""Sessions, or events, up to which all are examined, beyond which a sample is."""
SAMPLE: Final = 400
"""How many of more: less than 5 %, which MongoDB draws without reading all."""
LATEST: Final = 100
"""Events of each session that are compared with its revision: its latest."""
SHOWN: Final = 3
"""Of what was found wrong, so many are named."""

_SKEW: Final = 1.0
"""Seconds that clocks may differ: expiry is told by this machine's."""
_WINDOW: Final = 3600.0
"""Seconds of history below which a full oplog is called small."""
_FULL: Final = 0.9

_AS_NEEDED: Final = "Nothing has to be done: the first use creates it."
_AS_REPLICA_SET: Final = (
    "Start mongod with --replSet rs0, then call rs.initiate() once."
)
AS_IT_SAYS: Final = "Do as it says, and look again."
GRANT: Final = "Have an administrator run what `mongo-session-service grants` prints."


class Status(StrEnum):
    """How something is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not as well as it could."""
    FAILED = "failed"
    """It does not work, or data is not as it should be."""
    UNKNOWN = "unknown"
    """It could not be looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in one respect."""

    check: str
    status: Status
    says: str
    remedy: str | None = None
    """What to do about it; None if it is as it should be."""


@dataclass(frozen=True, slots=True)
class Oplog:
    """How far MongoDB's log of changes reaches."""

    window: float
    """Seconds from its first entry to now."""
    fullness: float
    """Of its space, 0 to 1; it begins to forget when it is full."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What was found wrong among documents that belong together."""

    total: int
    """As MongoDB estimates it."""
    is_sample: bool
    wrong: Sequence[Document]
    """Their sessions' ids; not all, if they are many."""

    def extent(self, noun: str) -> str:
        """How many it is about, in words."""
        among = f"a sample of {SAMPLE:,} of " if self.is_sample else ""
        return f"among {among}{counted(self.total, noun)}"


def judge_server(hello: Document, version: str) -> Finding:
    """Whether the server is one to work with.

    Raises:
        ConfigurationError: it is not, with the remedy.
    """
    check_server(hello, transactions=False)
    return Finding("server", Status.OK, f"MongoDB {version}")


def judge_members(hello: Document, unreachable: Iterable[str]) -> Finding:
    """Whether the replica set's members are all there."""
    check = "replica set"
    if is_standalone(hello):
        says = "a standalone server, without change streams and transactions"
        return Finding(check, Status.FAILED, says, _AS_REPLICA_SET)
    if "setName" not in hello:
        return Finding(check, Status.OK, "a sharded cluster, behind mongos")
    members = len([*hello["hosts"], *hello.get("passives", ())])
    says = f"{hello['setName']!r}, {counted(members, 'member')} with data"
    if lost := sorted(unreachable):
        says = f"{says}; out of reach: {', '.join(lost)}"
        remedy = "See to it that this machine reaches every member by its name."
        return Finding(check, Status.WARNING, says, remedy)
    if members == 1:
        says = f"{says}, so none takes over if it fails"
    return Finding(check, Status.OK, says)


def judge_transaction(seconds: float | None) -> Finding:
    """Whether a transaction was committed, and how long that took."""
    if seconds is None:
        says = "the service was told to do without: a crash can tear appends apart"
        return Finding("transactions", Status.WARNING, says, "Use a replica set.")
    says = f"one was committed in {1000 * seconds:.1f} ms"
    return Finding("transactions", Status.OK, says)


def judge_privileges(
    users: Sequence[str], held: Sequence[Document], database: str, prefix: str
) -> Finding:
    """Which features a user may use."""
    check = "privileges"
    if not users:
        says = "nobody is logged in: whoever reaches MongoDB may do everything"
        remedy = "Turn access control on, unless only you can reach it."
        return Finding(check, Status.WARNING, says, remedy)
    user = ", ".join(users)
    lacking = {
        feature: missing
        for feature in FEATURES
        if (
            missing := [
                str(each)
                for each in needs([feature], database, prefix)
                if not each.is_among(held)
            ]
        )
    }
    if not lacking:
        says = f"user {user!r} may do all of {', '.join(FEATURES)}"
        return Finding(check, Status.OK, says)
    told = "; ".join(
        f"for {feature}: {', '.join(missing)}" for feature, missing in lacking.items()
    )
    status = Status.FAILED if "sessions" in lacking else Status.WARNING
    return Finding(check, status, f"user {user!r} lacks, {told}", GRANT)


def judge_version(recorded: int | None) -> Finding:
    """Whether this release can work with the data."""
    check = "schema version"
    if recorded is None:
        return Finding(check, Status.OK, f"none is recorded yet. {_AS_NEEDED}")
    if recorded > SCHEMA_VERSION:
        says = f"{recorded}, newer than this release's {SCHEMA_VERSION}"
        return Finding(check, Status.FAILED, says, "Upgrade mongo-session-service.")
    if recorded < SCHEMA_VERSION:
        says = f"{recorded}, older than this release's {SCHEMA_VERSION}"
        remedy = "Run `mongo-session-service migrate` when all run this release."
        return Finding(check, Status.WARNING, says, remedy)
    return Finding(check, Status.OK, f"{recorded}, this release's")


def judge_indexes(missing: Sequence[Index], *, is_set_up: bool) -> Finding:
    """Whether queries are as fast as they can be, and events stored once."""
    if not missing:
        return Finding("indexes", Status.OK, "all are there")
    if not is_set_up:
        return Finding("indexes", Status.OK, f"there is nothing yet. {_AS_NEEDED}")
    names = ", ".join(f"{each.name} ({each.serves})" for each in missing)
    remedy = "Have setup() called by a user who may create indexes; see the log then."
    return Finding("indexes", Status.WARNING, f"missing or different: {names}", remedy)


def judge_oplog(oplog: Oplog | None) -> Finding:
    """Whether consumers can be away for a while and miss nothing."""
    check = "oplog window"
    if oplog is None:
        says = "there is no oplog, so changes cannot be watched"
        return Finding(check, Status.FAILED, says, _AS_REPLICA_SET)
    reach = _span(oplog.window)
    if oplog.fullness < _FULL:
        says = f"{reach}, all since it was begun; {oplog.fullness:.0%} of it is used"
        return Finding(check, Status.OK, says)
    if oplog.window >= _WINDOW:
        return Finding(check, Status.OK, reach)
    says = f"{reach}: who is away for longer loses history"
    remedy = "Enlarge it with replSetResizeOplog, to reach beyond your longest outage."
    return Finding(check, Status.WARNING, says, remedy)


def judge_clock(ahead: float, uncertainty: float) -> Finding:
    """Whether this machine and MongoDB agree about the time."""
    direction = "ahead of" if ahead > 0 else "behind"
    says = f"{abs(ahead):.3f} s {direction} MongoDB's, give or take {uncertainty:.3f}"
    if abs(ahead) <= _SKEW + uncertainty:
        return Finding("clock", Status.OK, says)
    remedy = "Have NTP set both; sessions expire by this machine's clock."
    return Finding("clock", Status.WARNING, says, remedy)


def judge_orphans(examined: Examined) -> Finding:
    """Whether there are events without a session."""
    extent = examined.extent("event")
    if not examined.wrong:
        return Finding("events", Status.OK, f"each has its session, {extent}")
    says = f"some without a session, {extent}: {_named(examined)}"
    remedy = (
        "If an import is under way, wait for it; if one was broken off, repeat it. Else"
        " somebody else removed the sessions: remove their events as well."
    )
    return Finding("events", Status.FAILED, says, remedy)


def judge_revisions(examined: Examined) -> Finding:
    """Whether sessions have the events that their revisions count."""
    extent = examined.extent("session")
    if not examined.wrong:
        says = f"each has the events its revision counts, {extent}"
        return Finding("sessions", Status.OK, says)
    says = f"events are missing, or too many, {extent}:"
    remedy = (
        "Something else than this package has changed the events. Restore them from a"
        " backup, or delete these sessions."
    )
    return Finding("sessions", Status.FAILED, f"{says} {_named(examined)}", remedy)


def _named(examined: Examined) -> str:
    names = ["/".join(map(str, each.values())) for each in examined.wrong[:SHOWN]]
    more = len(examined.wrong) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _span(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"
