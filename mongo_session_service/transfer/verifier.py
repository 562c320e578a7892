"""Verification: comparing a source with a target, session by session.

Both are compared in decoded form, as an agent receives them, by content hashes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

from google.adk.events.event import Event
from google.adk.platform import time as platform_time

from mongo_session_service.codec.bson_values import json_form
from mongo_session_service.codec.documents import encode_event_fields
from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.metadata import NO_DETAILS, titled
from mongo_session_service.model.records import SessionKey, session_key
from mongo_session_service.model.wording import counted
from mongo_session_service.transfer import records
from mongo_session_service.transfer.reconcile import content_digest, event_digest
from mongo_session_service.transfer.sources.stored_form import is_odd_content

_ROUNDING: Final = 2e-6
"""Seconds: databases keep microseconds, and events a little more."""

_Seen: TypeAlias = tuple[str, bytes]
"""An event's id and the hash of its content."""


class Readable(Protocol):
    """A target, in which sessions can be looked up."""

    async def find(
        self, key: SessionKey
    ) -> tuple[records.SessionHeader, records.Events] | records.Problem:
        """A session and its events, or why there is none."""

    async def find_shared(
        self, app_name: str, user_id: str | None
    ) -> records.SharedState | records.Problem:
        """The state of an app, or of one of its users, or why it cannot be read."""

    def keys(
        self, selection: records.Selection
    ) -> AsyncGenerator[SessionKey | records.Problem]:
        """The keys of all selected sessions."""


@dataclass(slots=True)
class Verified:
    """The result of a verification."""

    sessions: int = 0
    events: int = 0
    states: int = 0
    """Shared states that are not empty."""
    differences: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether there are no differences."""
        return self.differences == 0


async def verify(
    source: records.Source,
    target: Readable,
    selection: records.Selection = records.EVERYTHING,
    *,
    is_exact: bool = False,
    on_difference: Callable[[records.Problem], None] = lambda _: None,
    on_progress: Callable[[Verified], None] = lambda _: None,
) -> Verified:
    """Compare the selected sessions of an open source with an open target.

    Args:
        source: The expected sessions.
        target: The actual sessions.
        selection: Which sessions to compare.
        is_exact: Whether sessions that only the target has are differences too. This
            takes about a hundred bytes of memory for each session.
        on_difference: Called with each difference; it never quotes a value.
        on_progress: Called after each session.
    """
    verifier = _Verifier(target, is_exact, on_difference, on_progress)
    async with aclosing(source.read(selection)) as items:
        async for item in items:
            await verifier.take(item)
    await verifier.end()
    if is_exact:
        async for key in target.keys(selection):
            if isinstance(key, records.Problem):
                verifier.differ(key.where, key.reason)
            elif hash(key) not in verifier.keys:
                verifier.differ(records.named(key), "only the target has it")
    return verifier.verified


@dataclass(slots=True)
class _Verifier:
    target: Readable
    is_exact: bool
    on_difference: Callable[[records.Problem], None]
    on_progress: Callable[[Verified], None]
    verified: Verified = field(default_factory=Verified)
    keys: set[int] = field(default_factory=set)
    """The hashed keys of the sessions compared."""
    header: records.SessionHeader | None = None
    events: list[_Seen] = field(default_factory=list)

    def differ(self, where: str, reason: str) -> None:
        """Report a difference."""
        self.verified.differences += 1
        self.on_difference(records.Problem(where, reason))

    async def take(self, item: records.Item) -> None:
        """Add an item of the source."""
        match item:
            case records.Problem(where=where, reason=reason):
                self.differ(where, f"the source cannot be read here: {reason}")
            case Event() if self.header is not None:
                self.events.append(_seen(item))
            case records.SessionHeader():
                await self.end()
                if not item.has_expired(platform_time.get_time()):
                    self.header = item
            case records.SharedState():
                await self.end()
                # Some services store an empty row for each user.
                self.verified.states += bool(item.state)
                there = await self.target.find_shared(item.app_name, item.user_id)
                if isinstance(there, records.Problem):
                    self.differ(there.where, there.reason)
                    return
                for reason in _state_differences(item.state, there.state):
                    self.differ(str(item), reason)
                # An import begins to count anew.
                if self.is_exact and _is_other(item.revision, there.revision, 0):
                    reason = f"revision {item.revision}, there {there.revision}"
                    self.differ(str(item), reason)

    async def end(self) -> None:
        """Compare the session that has been read."""
        header, self.header = self.header, None
        if header is None:
            return
        events, self.events = self.events, []
        self.verified.sessions += 1
        self.verified.events += len(events)
        try:
            key = session_key(*header.key)
        except InvalidInputError as error:
            self.differ(records.named(header.key), str(error).rstrip("."))
            return
        if self.is_exact:
            self.keys.add(hash(key))
        found = await self.target.find(key)
        if isinstance(found, records.Problem):
            self.differ(found.where, found.reason)
        else:
            await self._compare(header, events, *found)
        self.on_progress(self.verified)

    async def _compare(
        self,
        header: records.SessionHeader,
        events: list[_Seen],
        there: records.SessionHeader,
        items: records.Events,
    ) -> None:
        seen: list[_Seen] = []
        async for item in items:
            match item:
                case records.Problem():
                    self.differ(item.where, item.reason)
                case records.StoredEvent(event=event, fields=fields):
                    found = event.id, event_digest(fields)
                    if found not in events[len(seen) : len(seen) + 1]:
                        if is_odd_content(fields, event):
                            where = f"event {len(seen) + 1} of"
                            where = f"{where} {records.named(there.key)}"
                            self.differ(where, records.ODD)
                        found = _seen(event)
                    seen.append(found)
                case Event():
                    seen.append(_seen(item))
        for reason in [
            *_header_differences(header, there),
            *_event_differences(events, seen),
        ]:
            self.differ(records.named(there.key), reason)


def _seen(event: Event) -> _Seen:
    try:
        return event.id, event_digest(encode_event_fields(event))
    except InvalidInputError:
        return event.id, b"what cannot be stored"


def _header_differences(
    here: records.SessionHeader, there: records.SessionHeader
) -> list[str]:
    here, there = _named(here, there)
    reasons = _state_differences(here.state, there.state)
    if here.initial is not None and there.initial is not None:
        found = _state_differences(here.initial, there.initial)
        reasons += [f"initial {difference}" for difference in found]
    if _is_other(here.revision, there.revision, 0):
        reasons.append(f"revision {here.revision}, there {there.revision}")
    if here.log_begins != there.log_begins:
        begins = f"{here.log_begins}, there {there.log_begins}"
        reasons.append(f"the log begins after revision {begins}")
    reasons += _times_apart("updated", here.update_time, there.update_time)
    if None not in (here.details, there.details) and here.details != there.details:
        reasons.append("title, labels or time to live are different")
    reasons += _times_apart("created", here.create_time, there.create_time)
    return reasons


def _named(*headers: records.SessionHeader) -> list[records.SessionHeader]:
    """Two headers with titles as display names, whichever of the two is stored.

    If both have details, which are compared, their display names are not compared. If
    the first has neither, nobody can tell whether the second was renamed.
    """
    here, there = headers
    known = [(each.details or NO_DETAILS).named(each.state) for each in headers]
    titles = [each.title for each in known]
    if there.details and (here.details or titles[0] is None):
        titles[1] = titles[0]
    return [
        replace(
            each,
            details=each.details and details,
            state=titled(dict(each.state), title),
        )
        for each, details, title in zip(headers, known, titles, strict=True)
    ]


def _times_apart(what: str, here: float | None, there: float | None) -> list[str]:
    """What happened at which times, if both are known and differ."""
    if here is None or there is None or not _is_other(here, there):
        return []
    return [f"{what} at {_moment(here)}, there {_moment(there)}"]


def _moment(seconds: float) -> str:
    """A time as ISO 8601 text; one that is in no calendar as its number."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (OSError, OverflowError, ValueError):
        return f"{seconds!r}"


def _is_other(
    here: float | None, there: float | None, rounding: float = _ROUNDING
) -> bool:
    """Whether two known numbers differ by more than what databases round."""
    if here is None or there is None:
        return False
    return abs(here - there) > rounding


def _state_differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    reasons = []
    for key in sorted(here.keys() | there.keys()):
        if key not in there:
            reasons.append(f"state key {key!r} is missing in the target")
        elif key not in here:
            reasons.append(f"state key {key!r} is only in the target")
        elif not _is_same(here[key], there[key]):
            reasons.append(f"state key {key!r} has another value")
    return reasons


def _is_same(here: Any, there: Any) -> bool:
    """Whether a value is there as it is here, or in the form in which it is stored."""
    wanted = content_digest({"": there})
    if content_digest({"": here}) == wanted:
        return True
    try:
        return content_digest({"": json_form(here)}) == wanted
    except InvalidInputError:
        return False


def _event_differences(here: list[_Seen], there: list[_Seen]) -> list[str]:
    if here == there:
        return []
    reasons = []
    if len(here) != len(there):
        reasons.append(f"{counted(len(here), 'event')}, there {len(there)}")
    for number, (one, other) in enumerate(zip(here, there, strict=False), start=1):
        if one != other:
            what = "another" if one[0] != other[0] else "other content"
            reasons.append(f"event {number}, {one[0]!r}: {what} in the target")
            break
    return reasons
