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
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from enum import Enum
from typing import Annotated, Any, Final, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FiniteFloat,
    ValidationError,
)

from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.validation import check_text, wrong_type

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


def check_stored_title(title: object) -> str:
    """A title as it is stored, ``NO_TITLE`` among them."""
    return NO_TITLE if title == NO_TITLE else check_title(title)


def check_title(title: object) -> str:
    return check_short("title", title, MAX_TITLE)


def check_labels(labels: object) -> dict[str, str]:
    if not isinstance(labels, Mapping):
        raise wrong_type("labels", "a dict of strings", labels)
    if len(labels) > MAX_LABELS:
        message = f"{len(labels)} labels are too many; {MAX_LABELS} are allowed."
        raise InvalidInputError(message)
    for name, value in labels.items():
        check_short("A label's name", name, MAX_LABEL)
        if value != "":
            check_short(f"The value of label {name!r}", value, MAX_LABEL)
    return dict(labels)


def check_ttl(ttl: object) -> float:
    """A time to live of at most ``MAX_TTL``, in seconds; see :func:`check_duration`."""
    return check_duration("ttl", ttl)


DESCRIBED: Final = ConfigDict(
    frozen=True,
    use_attribute_docstrings=True,
    json_schema_serialization_defaults_required=True,
)


class Details(BaseModel):
    """What people note of a session; summaries, changes, exports, requests have it."""

    model_config = DESCRIBED

    title: Annotated[str, BeforeValidator(check_stored_title)] | None = None
    labels: Annotated[dict[str, str], BeforeValidator(check_labels)] = {}
    ttl: Annotated[float, BeforeValidator(check_ttl)] | None = None
    """Seconds that it lives after its last append, or turn."""
    expire_time: FiniteFloat | None = None
    """When it expires, unless something is appended; None for never."""


class StoredDetails(Details):
    """As they are stored, and exported."""

    @classmethod
    def given(
        cls, now: float = 0.0, *, is_new: bool = False, **arguments: object
    ) -> Self:
        """Check the arguments of a call; those that are not given are not set.

        None means that of what is new, and else that something ends.
        """
        missing = None if is_new else NOT_GIVEN
        known = {name: it for name, it in arguments.items() if it is not missing}
        if not known and is_new:
            return cls()
        if not known:
            names = " or ".join(", ".join(Details.model_fields).rsplit(", ", 1))
            raise InvalidInputError(f"Give a {names} to set, or None to end one.")
        if known.get("title") is not None:
            check_title(known["title"])
        if known.keys() & {"ttl", "expire_time"}:
            known |= _expiry(known.get("ttl"), known.get("expire_time"), now)
        unset = {name: cls.model_fields[name].default for name in known}
        known = {name: unset[name] if it is None else it for name, it in known.items()}
        try:
            return cls.model_validate(known)
        except ValidationError as error:
            raise error.errors()[0]["ctx"]["error"] from None

    def changed(self) -> dict[str, Any]:
        """Return the stored fields that an update sets; None for those it removes."""
        # By what stays of these, a subscriber that was away knows that they went.
        stored = {"title": NO_TITLE, "labels": [], **self.to_document()}
        return {name: stored.get(name) for name in self.model_fields_set}

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield what a session has that has all of these, each label by itself."""
        for name, value in self.to_document().items():
            for each in value if isinstance(value, list) else [value]:
                yield name, each

    def with_display_name(self, state: Mapping[str, Any]) -> Self:
        """Add the display name in a state as the title, if there is no title."""
        if self.title is not None or (title := display_name(state)) is None:
            return self
        return self.model_copy(update={"title": title})

    def with_renewed_expiry(self, now: float) -> Self:
        """Renew the time to live from now on, if there is one."""
        ttl = self.ttl
        return (
            self if ttl is None else self.model_copy(update={"expire_time": now + ttl})
        )

    def as_results(self) -> dict[str, Any]:
        """Return them all, as summaries and changes have them."""
        known = {name: getattr(self, name) for name in Details.model_fields}
        return {**known, "title": self.title or None}

    def to_json(self) -> dict[str, Any]:
        """Return those that it has, labels by name, as exports have them."""
        if not self.model_fields_set:
            return {}
        known = {**dict(self), "labels": dict(sorted(self.labels.items()))}
        return {name: it for name, it in known.items() if it not in ({}, None)}

    def to_document(self) -> dict[str, Any]:
        """Return them as fields of a session's document: only those it has."""
        known = self.to_json()
        return known | {"labels": label_list(self.labels)} if self.labels else known


DETAILS: Final = tuple(StoredDetails.model_fields)
NO_DETAILS: Final = StoredDetails()
CONVERSATION: Final = ("title", "labels")
"""The details that a family has in common, and people may change over HTTP."""


def resolve_title(title: object, display_name: object) -> object:
    if title is not None and display_name is not None and title != display_name:
        message = "title and display_name are two names of one thing: give one of them."
        raise InvalidInputError(message)
    return display_name if title is None else title


def _expiry(ttl: object, expire_time: object, now: float) -> dict[str, float | None]:
    """The time to live or the expiry, of which one at most is given.

    When the first ends is known once it begins: see ``with_renewed_expiry``.
    """
    if ttl is None:
        is_never = expire_time is None
        ends = None if is_never else check_expire_time(expire_time, now)
        return {"ttl": None, "expire_time": ends}
    if expire_time is not None:
        message = (
            "Give a ttl, which each append renews, or an expire_time, which stays, but"
            " not both."
        )
        raise InvalidInputError(message)
    return {"ttl": None if ttl == math.inf else check_ttl(ttl), "expire_time": None}


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
        raise wrong_type(what, "a datetime or ISO 8601 text", value)
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


def check_short(what: str, value: object, longest: int) -> str:
    text = check_text(what, value)
    if len(text) > longest:
        message = f"{what} has {len(text)} characters; {longest} are allowed."
        raise InvalidInputError(message)
    return text
