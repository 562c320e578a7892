"""Comparison of a source's sessions with those of a target, for import and verify."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from mongo_session_service.codec import documents
from mongo_session_service.codec.bson_values import decode_value, is_same_value
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.errors import InvalidInputError, StorageError
from mongo_session_service.model.metadata import (
    ADK_METADATA,
    DETAILS,
    NO_DETAILS,
    display_name,
    titled,
)
from mongo_session_service.model.records import Append, Document
from mongo_session_service.model.wording import counted
from mongo_session_service.sessions.deletion import is_session
from mongo_session_service.transfer.import_batches import EncodedSession, EncodedState
from mongo_session_service.transfer.source_items import (
    ALTERED,
    Problem,
    session_text,
)

_ROUNDING: Final = 2e-6
"""Seconds by which equal times may differ."""


class ComparisonResult(Enum):
    """Result of comparing a session in the target with the one to import."""

    NEW = "new"
    SAME = "unchanged"
    BEHIND = "behind"
    """The target has its first events."""
    AHEAD = "ahead"
    """The target has all of it, and what was appended or changed there since."""
    CONFLICT = "conflict"


class Difference(NamedTuple):
    """A field of a session's document that is not equal, and how it differs."""

    field: str
    reason: str


class SessionPlan(NamedTuple):
    """A session of the source, or a part of one, beside what the target holds of it."""

    incoming: EncodedSession
    found: Document | None
    """The target's document under its id: a session or a reservation."""
    comparison: ComparisonResult
    matched: int
    """Events of this part that are stored correctly, counted from its first."""
    stored: int = 0
    """Events of a session that is not visible yet, correct or not."""
    event: str = ""
    """How the first event that is not equal differs; empty if all are equal."""
    differences: tuple[Difference, ...] = ()
    """Fields that differ, in the last part."""
    reason: str = ""
    """Why the two cannot be parts of one session."""

    @property
    def reasons(self) -> list[str]:
        """Everything that differs."""
        known = [each.reason for each in self.differences]
        return [self.event, *known] if self.event else known

    @property
    def conflict(self) -> Problem:
        """Problem that keeps the source's session from being stored."""
        reason = self.reason
        if self.incoming.is_renamed:
            reason += "; its id is stored without its white space"
        if self._is_redacted:
            reason += "; the target's has redacted events, so it is never replaced"
        return Problem(session_text(self.incoming.header.key), reason)

    @property
    def may_replace(self) -> bool:
        """Tell whether it may replace what differs.

        It may not if it has another one's id, or would bring back what was redacted.
        """
        return not (self.incoming.is_renamed or self._is_redacted)

    @property
    def _is_redacted(self) -> bool:
        return self.found is not None and documents.REDACTIONS in self.found

    @property
    def is_lacking(self) -> bool:
        """Tell whether there is something to write."""
        return self.comparison not in {ComparisonResult.SAME, ComparisonResult.AHEAD}


class StatePlan(NamedTuple):
    """State of the source beside what the target holds of it."""

    state: EncodedState
    comparison: ComparisonResult
    revision: int | None
    """The target's; None if it has none."""
    is_noted: bool
    """Whether an import has noted that it brought the target to that revision."""
    differences: tuple[str, ...] = ()
    may_replace: bool = True

    @property
    def conflict(self) -> Problem:
        """Problem that keeps the source's state from being stored."""
        return Problem(str(self.state.shared), "it was changed in the target")

    @property
    def lacks_note(self) -> bool:
        """Tell whether an import was killed between the state and its note."""
        return self.comparison is ComparisonResult.SAME and not self.is_noted

    @property
    def is_lacking(self) -> bool:
        """Tell whether there is something to write."""
        is_there = self.comparison in {ComparisonResult.SAME, ComparisonResult.AHEAD}
        return not is_there or self.lacks_note


def _count_matching(
    incoming: EncodedSession, stored: Sequence[Document], hooks: Hooks
) -> int:
    """Count the events of a part that are stored correctly, from its first on."""
    for index, append in enumerate(incoming.appends):
        if index == len(stored) or not _is_already_stored(
            append, incoming.offset + index + 1, stored[index], hooks
        ):
            return index
    return len(incoming.appends)


def _is_already_stored(
    append: Append, revision: int, stored: Document, hooks: Hooks
) -> bool:
    """Tell whether an event is stored at its revision, in any order of fields."""
    id_ = stored["_id"]
    is_next = id_ == append.key.event_id(revision) and isinstance(id_["revision"], int)
    if not is_next:
        return False
    event = stored.get("event")
    if not isinstance(event, dict):
        return False
    if documents.is_same_event(append, event, hooks):
        return True
    try:
        one, other = (
            documents.loaded_fields(each, append.key, hooks)
            for each in (append.event, event)
        )
        return is_same_value(decode_value(one), decode_value(other))
    except (StorageError, InvalidInputError):
        return False


def _event_difference(
    incoming: EncodedSession, stored: Sequence[Document], matched: int
) -> str:
    append, revision = incoming.appends[matched], incoming.offset + matched + 1
    event_id = append.event.get("id")
    found = stored[matched] if matched < len(stored) else None
    if found is None or found["_id"]["revision"] != revision:
        what = "is missing"
    else:
        event = found.get("event")
        is_its = isinstance(event, dict) and event.get("id") == event_id
        what = "other content" if is_its else "another"
    return f"event {revision}, {event_id!r}: {what} in the target"


def compare_session(
    incoming: EncodedSession,
    found: Document | None,
    stored: Sequence[Document],
    hooks: Hooks,
) -> SessionPlan:
    """Compare a session, or a part of one, with what the target holds.

    That is the document under its id, and the events from the part's first on, at most
    one more than it has. Content is compared as it is after loading.
    """
    matched = _count_matching(incoming, stored, hooks)
    plan = SessionPlan(incoming, found, ComparisonResult.NEW, matched)
    if found is None or not is_session(found):
        missing = Difference("_id", "the target does not have it")
        there = plan._replace(stored=len(stored))
        return there._replace(differences=(missing,)) if incoming.is_last else there
    plan = plan._replace(comparison=ComparisonResult.CONFLICT)
    try:
        documents.checked_key(found)
        differences = tuple(_session_differences(incoming, found, hooks))
    except StorageError:
        return plan._replace(differences=(Difference("_id", ALTERED),), reason=ALTERED)
    plan = plan._replace(differences=differences)
    if incoming.offset + matched < min(found["revision"], incoming.revision):
        event = _event_difference(incoming, stored, matched)
        reason = f"its event {incoming.offset + matched + 1} is different"
        return plan._replace(event=event, reason=reason)
    reasons = {each.field: each.reason for each in reversed(differences)}
    comparison, reason = _classify(incoming, found, reasons)
    return plan._replace(comparison=comparison, reason=reason)


def _classify(
    incoming: EncodedSession, session: Document, reasons: Mapping[str, str]
) -> tuple[ComparisonResult, str]:
    """Judge two sessions without different events, and say why in a conflict.

    ``reasons`` has how each field that is not equal differs.
    """
    revision = session["revision"]
    if documents.LOG_BEGINS in reasons:
        return ComparisonResult.CONFLICT, reasons[documents.LOG_BEGINS]
    if not incoming.is_last:
        return ComparisonResult.BEHIND, ""
    if revision == documents.log_begins(session):
        # Without events, two sessions are one if they were created at the same time.
        known = "state" if incoming.header.create_time is None else "create_time"
        if known in reasons:
            return ComparisonResult.CONFLICT, "it was created separately"
    if revision != incoming.revision:
        is_ahead = revision > incoming.revision
        return ComparisonResult.AHEAD if is_ahead else ComparisonResult.BEHIND, ""
    for field in ("details", "state", "update_time"):
        if field in reasons and incoming.header.update_time > session["update_time"]:
            return ComparisonResult.BEHIND, ""
        if field in reasons:
            return ComparisonResult.CONFLICT, reasons[field]
    if documents.INITIAL in reasons:
        return ComparisonResult.CONFLICT, reasons[documents.INITIAL]
    return ComparisonResult.SAME, ""


def _session_differences(
    incoming: EncodedSession, session: Document, hooks: Hooks
) -> Iterator[Difference]:
    """Find the fields that differ; in a part before the last, only the log's begin."""
    header, begins = incoming.header, documents.log_begins(session)
    if not is_same_value(begins, header.log_begins):
        reason = f"its log begins after revision {begins}, not {header.log_begins}"
        yield Difference(documents.LOG_BEGINS, reason)
    if not incoming.is_last:
        return
    count, other = incoming.revision - header.log_begins, session["revision"] - begins
    if not is_same_value(count, other):
        yield Difference("revision", f"{counted(count, 'event')}, there {other}")
    owner = Owner.of_session(incoming.key)
    here = documents.decode_state(incoming.state, owner, hooks)
    there = documents.decode_state(session["state"], owner, hooks)
    yield from _title_and_details(incoming, session, here, there)
    if display_name(here) or display_name(there):
        # A title may be stored as the display name; it was compared as one.
        here, there = titled(here, "-"), titled(there, "-")
    for reason in _state_differences(here, there):
        yield Difference("state", reason)
    if incoming.initial is not None:
        began = documents.decode_state(incoming.initial, owner, hooks)
        before = documents.decode_state(
            session.get(documents.INITIAL, {}), owner, hooks
        )
        for reason in _state_differences(began, before):
            yield Difference(documents.INITIAL, f"initial {reason}")
    times = {"update_time": header.update_time, "create_time": header.create_time}
    for name, seconds in times.items():
        if seconds is not None and not _is_same_time(seconds, session[name]):
            moments = f"{_moment(seconds)}, there {_moment(session[name])}"
            yield Difference(name, f"{name.replace('_time', 'd')} at {moments}")


def _title_and_details(
    incoming: EncodedSession,
    session: Document,
    here: Mapping[str, Any],
    there: Mapping[str, Any],
) -> Iterator[Difference]:
    """Compare titles, wherever they are stored, and details if the source has them."""
    known = incoming.details
    title = (known or NO_DETAILS).with_display_name(here).title
    stored: Document = {name: session[name] for name in DETAILS if name in session}
    if (name := display_name(there)) is not None:
        stored.setdefault("title", name)
    if known is not None:
        if not is_same_value(replace(known, title=title).to_document(), stored):
            reason = "title, labels or time to live are different"
            yield Difference("details", reason)
    elif title is not None and title != stored.get("title"):
        # It may have been renamed here, which an import leaves as it is.
        reason = f"state key {ADK_METADATA!r} has another value"
        yield Difference("title", reason)


def _moment(seconds: float) -> str:
    """Write a time as ISO 8601 text; one that is in no calendar as its number."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (OSError, OverflowError, ValueError):
        return f"{seconds!r}"


def _is_same_time(here: float, there: Any) -> bool:
    # Databases keep microseconds, and events a little more.
    return isinstance(there, float) and abs(here - there) <= _ROUNDING


def _state_differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    reasons = []
    for key in sorted(here.keys() | there.keys()):
        if key not in there:
            reasons.append(f"state key {key!r} is missing in the target")
        elif key not in here:
            reasons.append(f"state key {key!r} is only in the target")
        elif not is_same_value(here[key], there[key]):
            reasons.append(f"state key {key!r} has another value")
    return reasons


def compare_state(
    wanted: EncodedState,
    stored: Document | None,
    note: Document | None,
    hooks: Hooks,
) -> StatePlan:
    """Compare the state of an app or user with what the target holds.

    The note is the last import's, with the revision that it wrote, and a digest.
    """
    owner = wanted.shared.owner
    here = documents.decode_state(wanted.state, owner, hooks)
    revision = stored.get("revision") if stored else None
    is_noted = note is not None and note["revision"] == revision
    plan = StatePlan(wanted, ComparisonResult.CONFLICT, revision, is_noted)
    try:
        fields = {} if stored is None else stored.get("state")
        there = documents.decode_state(fields, owner, hooks)
    except StorageError:
        return plan._replace(differences=(ALTERED,))
    plan = plan._replace(differences=tuple(_state_differences(here, there)))
    if stored is None:
        return plan._replace(comparison=ComparisonResult.NEW)
    if not plan.differences:
        return plan._replace(comparison=ComparisonResult.SAME)
    if is_noted:
        return plan._replace(comparison=ComparisonResult.BEHIND)
    if note and wanted.digest and note.get("digest") == wanted.digest:
        return plan._replace(comparison=ComparisonResult.AHEAD)
    return plan
