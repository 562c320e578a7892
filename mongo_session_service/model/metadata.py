"""Session metadata: title, labels, time to live and expiry.

All of it is optional, in arguments and in documents. Labels are stored as a list of
names and values, so that one index finds a session by any of them. Arguments that are
not what they should be raise ``InvalidInputError``.

ADK's web interface keeps a title in the session's own state, as the display name. A
title that is stored beside the state takes its place when the state is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, Self

from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.validation import check_text

MAX_TITLE: Final = 1000  # characters
NO_TITLE: Final = ""
"""The stored title of a session whose title was removed, with its display name."""
MAX_LABELS: Final = 64
MAX_LABEL: Final = 256
"""Characters of a label's name, and of its value."""
MAX_TTL: Final = 100 * 365.25 * 86400
"""Seconds: a hundred years."""


class NotGiven(Enum):
    """Marks an argument that is left out, where None has a meaning."""

    NOT_GIVEN = "not given"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN


@dataclass(frozen=True, slots=True)
class Details:
    title: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    ttl: float | None = None
    """Seconds that it lives after its last append."""
    expire_time: float | None = None
    """Seconds since 1970."""
    branch: Mapping[str, Any] = field(default_factory=dict)
    """Its place in a family, see :func:`place_in_family`."""

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Details:
        return cls(
            title=document.get("title"),
            labels={each["name"]: each["value"] for each in document.get("labels", ())},
            ttl=document.get("ttl"),
            expire_time=document.get("expire_time"),
            branch=place_in_family(document),
        )

    def check(self) -> None:
        """Refuse what only another tool can have stored."""
        check_labels(self.labels)
        if self.title is not None:
            check_stored_title(self.title)
        if self.ttl is not None:
            check_ttl(self.ttl)

    def with_display_name(self, state: Mapping[str, Any]) -> Self:
        """Add the display name in a state as the title, if there is no title."""
        if self.title is not None or (title := display_name(state)) is None:
            return self
        return replace(self, title=title)

    def with_renewed_expiry(self, now: float) -> Self:
        """Renew the time to live from now on, if there is one."""
        return self if self.ttl is None else replace(self, expire_time=now + self.ttl)

    def as_results(self) -> dict[str, Any]:
        """Return them all, as summaries and changes have them."""
        return {
            "title": self.title or None,
            "labels": dict(self.labels),
            "ttl": self.ttl,
            "expire_time": self.expire_time,
            "root_id": self.branch.get("root"),
        }

    @property
    def is_shown(self) -> bool | None:
        """Whether its family shows it; None without one."""
        return "hidden" not in self.branch if self.branch else None

    def to_json(self) -> dict[str, Any]:
        """Return those that it has, labels by name, as exports have them."""
        known = {name: getattr(self, name) for name in DETAILS}
        known["labels"] = dict(sorted(self.labels.items())) or None
        known["branch"] = dict(self.branch) or None
        return {name: value for name, value in known.items() if value is not None}

    def to_document(self) -> dict[str, Any]:
        """Return them as fields of a session's document: only those it has."""
        known = self.to_json()
        if self.labels:
            known["labels"] = label_list(self.labels)
        return known


BRANCH: Final = "branch"
"""Where a session that has a version of a message keeps its place in their family."""


def place_in_family(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored session's place in its family.

    It is empty without a family, and if another tool has damaged it.
    """
    place = session.get(BRANCH)
    if not isinstance(place, dict):
        return {}
    parts = [{"before": "", **place}.get(name) for name in ("family", "root", "before")]
    return place if all(isinstance(each, str) for each in parts) else {}


DETAILS: Final = tuple(each.name for each in fields(Details))
NO_DETAILS: Final = Details()


def resolve_title(title: object, display_name: object) -> object:
    if title is not None and display_name is not None and title != display_name:
        message = "title and display_name are two names of one thing: give one of them."
        raise InvalidInputError(message)
    return display_name if title is None else title


def new_details(
    title: object, labels: object, ttl: object, expire_time: object, now: float
) -> Details:
    """Return the details of a session that is created now; None is left out."""
    seconds, expires = _expiry(ttl, expire_time, now)
    return Details(
        title=None if title is None else check_title(title),
        labels={} if labels is None else check_labels(labels),
        ttl=seconds,
        expire_time=expires,
    )


def _expiry(
    ttl: object, expire_time: object, now: float
) -> tuple[float | None, float | None]:
    """The time to live, and when it ends, of which one at most is given."""
    if ttl is None:
        is_never = expire_time is None
        return None, None if is_never else check_expire_time(expire_time, now)
    if expire_time is not None:
        message = (
            "Give a ttl, which each append renews, or an expire_time, which stays, but"
            " not both."
        )
        raise InvalidInputError(message)
    if ttl == math.inf:
        return None, None
    seconds = check_ttl(ttl)
    return seconds, now + seconds


ADK_METADATA: Final = "__session_metadata__"
"""The key of a session's state whose value is a dict with the display name."""
_DISPLAY_NAME: Final = "displayName"


def display_name(state: Mapping[str, Any]) -> str | None:
    """The display name in a state, or in a delta, if it can be a title."""
    value = state.get(ADK_METADATA)
    if not isinstance(value, dict):
        return None
    try:
        return check_title(value.get(_DISPLAY_NAME))
    except InvalidInputError:
        return None


def with_title(state: dict[str, Any], title: str | None) -> dict[str, Any]:
    """A state with a stored title as its display name.

    It stays as it is if no title is stored, or if another tool uses the key.
    """
    value = state.get(ADK_METADATA, {})
    if title is None or not isinstance(value, dict):
        return state
    others = {name: it for name, it in value.items() if name != _DISPLAY_NAME}
    if title != NO_TITLE:
        return {**state, ADK_METADATA: {**value, _DISPLAY_NAME: title}}
    return state if others == value else {**state, ADK_METADATA: others}


def changed_fields(
    title: object, labels: object, ttl: object, expire_time: object, now: float
) -> dict[str, Any]:
    """Return the fields that an update sets in a session; None for those it removes."""
    changed: dict[str, Any] = {}
    if title is not NOT_GIVEN:
        changed["title"] = NO_TITLE if title is None else check_title(title)
    if labels is not NOT_GIVEN:
        checked = {} if labels is None else check_labels(labels)
        changed["labels"] = label_list(checked) or None
    if ttl is not NOT_GIVEN or expire_time is not NOT_GIVEN:
        ttl = None if ttl is NOT_GIVEN else ttl
        expire_time = None if expire_time is NOT_GIVEN else expire_time
        changed["ttl"], changed["expire_time"] = _expiry(ttl, expire_time, now)
    if not changed:
        message = "Give a title, labels, ttl or expire_time to set, or None to end one."
        raise InvalidInputError(message)
    return changed


def check_title(title: object) -> str:
    return _check_short("title", title, MAX_TITLE)


def check_title_part(part: object) -> str:
    return _check_short("title_contains", part, MAX_TITLE)


def check_stored_title(title: object) -> str:
    """A title as it is stored, ``NO_TITLE`` among them."""
    return NO_TITLE if title == NO_TITLE else check_title(title)


def check_labels(labels: object) -> dict[str, str]:
    if not isinstance(labels, Mapping):
        kind = type(labels).__name__
        raise InvalidInputError(f"labels must be a dict of strings, not {kind}.")
    if len(labels) > MAX_LABELS:
        message = f"{len(labels)} labels are too many; {MAX_LABELS} are allowed."
        raise InvalidInputError(message)
    for name, value in labels.items():
        _check_short("A label's name", name, MAX_LABEL)
        if value != "":
            _check_short(f"The value of label {name!r}", value, MAX_LABEL)
    return dict(labels)


def check_ttl(ttl: object) -> float:
    """A time to live of at most ``MAX_TTL``, in seconds; see :func:`check_duration`."""
    return check_duration("ttl", ttl)


def check_duration(what: str, value: object) -> float:
    """Require a number of seconds, at most ``MAX_TTL``.

    A ``timedelta`` will do, and so will seconds as Vertex AI writes them: ``"7200s"``.
    """
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?s", value):
        seconds = float(value[:-1])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value) if abs(value) <= MAX_TTL else math.inf
    else:
        kind = "other text" if isinstance(value, str) else type(value).__name__
        message = (
            f'{what} must be seconds, a timedelta or text such as "7200s", not {kind}.'
        )
        raise InvalidInputError(message)
    if not 0 < seconds <= MAX_TTL:
        message = f"{what} must be more than 0 and at most {MAX_TTL:.0f} seconds."
        raise InvalidInputError(message)
    return seconds


def check_expire_time(expire_time: object, now: float) -> float:
    """A ``datetime`` or ISO 8601 text after ``now``, in seconds since 1970."""
    seconds = check_moment("expire_time", expire_time)
    if seconds <= now:
        raise InvalidInputError("expire_time must be in the future.")
    return seconds


def check_moment(what: str, value: object) -> float:
    """A ``datetime`` or ISO 8601 text with a time zone, in seconds since 1970."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            message = f"{what} is not ISO 8601; expected 2027-01-31T12:00:00Z, say."
            raise InvalidInputError(message) from None
    if not isinstance(value, datetime):
        kind = type(value).__name__
        message = f"{what} must be a datetime or ISO 8601 text, not {kind}."
        raise InvalidInputError(message)
    if value.utcoffset() is None:
        message = (
            f"{what} has no time zone, so it is ambiguous. Add one, as in"
            " datetime.now(UTC) or 2027-01-31T12:00:00Z."
        )
        raise InvalidInputError(message)
    return value.timestamp()


def label_list(labels: Mapping[str, str]) -> list[dict[str, str]]:
    """Labels as they are stored, by name."""
    return [{"name": name, "value": value} for name, value in sorted(labels.items())]


def _check_short(what: str, value: object, longest: int) -> str:
    text = check_text(what, value)
    if len(text) > longest:
        message = f"{what} has {len(text)} characters; {longest} are allowed."
        raise InvalidInputError(message)
    return text
