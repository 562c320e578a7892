"""Argument validation: each error names what is wrong and what would be right.

Every one of them raises ``InvalidInputError``.
"""

from __future__ import annotations

import math
from typing import Any, Final

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from pydantic import ValidationError

from mongo_session_service.errors import InvalidInputError, quoted
from mongo_session_service.model.wording import indefinite

_NUMBER: Final = (int, float)

MAX_ID_BYTES: Final = 4096
"""Bytes of an id in UTF-8. Every event's ``_id`` has three, and MongoDB reports a
change only if they fit into 16 MB twice, beside the event."""


def wrong_type(what: str, wanted: str, value: object) -> InvalidInputError:
    """Make the error for a value of another type than the one that is wanted."""
    return InvalidInputError(f"{what} must be {wanted}, not {type(value).__name__}.")


def check_id(what: str, value: object) -> str:
    """Return a string of at most ``MAX_ID_BYTES`` that can name something."""
    if type(value) is str and 0 < len(value) <= MAX_ID_BYTES and value.isascii():
        return value  # as most are, without a call for each condition
    text = check_text(what, value)
    if (length := len(text.encode())) > MAX_ID_BYTES:
        message = f"{what} has {length} bytes in UTF-8; it may have {MAX_ID_BYTES}."
        raise InvalidInputError(message)
    return text


def check_text(what: str, value: object) -> str:
    """Return a plain string of valid Unicode that is not empty."""
    plain = check_string(what, value)
    if not plain:
        raise InvalidInputError(f"{what} must not be empty.")
    try:
        plain.encode()
    except UnicodeEncodeError:
        message = f"{what} is not valid Unicode: it holds a lone surrogate."
        raise InvalidInputError(message) from None
    return plain


def check_string(what: str, value: object) -> str:
    """Return a plain string, whatever it contains."""
    if not isinstance(value, str):
        raise wrong_type(what, "a string", value)
    return str.__str__(value)  # a subclass may have methods of its own


def check_scope(app_name: object, user_id: object) -> tuple[str | None, str | None]:
    """Return an app and one of its users, each None for all."""
    app = None if app_name is None else check_id("app_name", app_name)
    if user_id is not None and app is None:
        raise InvalidInputError("A user_id needs its app_name.")
    return app, None if user_id is None else check_id("user_id", user_id)


def lookup_id(what: str, value: object) -> str | None:
    """Return an id to look up; None if it is a string that nothing is stored under."""
    try:
        return check_id(what, value)
    except InvalidInputError:
        if isinstance(value, str):
            return None
        raise


def check_revision(what: str, value: object) -> None:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 <= value < 2**63):  # type: ignore[operator]
        raise InvalidInputError(f"{what} must be a number of appends, 0 or more.")


def check_seconds(what: str, value: object) -> None:
    is_time = (isinstance(value, float) and not math.isnan(value)) or (
        isinstance(value, int)
        and not isinstance(value, bool)
        and abs(value) < 2**63  # what an event loop can add to its own time
    )
    if value is not None and not is_time:
        raise InvalidInputError(f"{what} must be a number of seconds.")


def check_wait(what: str, value: object) -> None:
    """Require a number of seconds that is not negative, or None."""
    check_seconds(what, value)
    if isinstance(value, int | float) and value < 0:
        raise InvalidInputError(f"{what} must not be negative.")


def check_choice(what: str, value: object, choices: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in choices:
        given = quoted(value) if isinstance(value, str) else type(value).__name__
        message = f"{what} must be one of {', '.join(choices)}, not {given}."
        raise InvalidInputError(message)
    return value


def check_flag(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(what, "True or False", value)
    return value


def check_place(what: str, value: object) -> None:
    """Require an epoch and a position, both whole numbers from 0 on, or None."""
    is_pair = isinstance(value, tuple | list) and len(value) == 2  # noqa: PLR2004
    if value is None or (
        is_pair and all(type(it) is int and it >= 0 for it in value)  # type: ignore[attr-defined]
    ):
        return
    raise InvalidInputError(f"{what} must be an epoch and a position, 0 or more each.")


def check_count(what: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInputError(f"{what} must be a number, 1 or more.")


def check_callable(what: str, value: object) -> None:
    if not callable(value):
        raise wrong_type(what, "a function", value)


def check_session(value: object) -> None:
    """Require an ADK session whose fields have the types that an append needs.

    It runs before the event is stored: a failure after that would look as if the event
    were not stored.
    """
    events = getattr(value, "events", None)
    last = events[-1:] if isinstance(events, list) else []
    _check_types(
        ("session", value, Session),
        ("session.state", getattr(value, "state", None), dict),
        ("session.events", events, list),
        ("session.last_update_time", getattr(value, "last_update_time", None), _NUMBER),
        *(("The last of session.events", each, Event) for each in last),
    )


def check_event(value: object) -> None:
    actions = getattr(value, "actions", None)
    _check_types(("event", value, Event), ("event.actions", actions, EventActions))


def check_whole_event(value: object) -> None:
    """Require an ADK event that needs no session in hand: no part, and no rewind."""
    check_event(value)
    event: Event = value  # type: ignore[assignment]
    if event.partial:
        message = "A partial event is not stored: append the whole one."
        raise InvalidInputError(message)
    if event.actions.rewind_before_invocation_id:
        message = "A rewind depends on the whole session: use Runner.rewind_async()."
        raise InvalidInputError(message)


def check_config(value: object) -> GetSessionConfig | None:
    """Return a config whose values are valid, as any may have been assigned."""
    if value is None:
        return None
    if type(value) is GetSessionConfig and value.after_timestamp is None:
        count = value.num_recent_events
        if type(count) is int and count >= 0:  # what is below takes ten times as long
            return value
    _check_types(("config", value, GetSessionConfig))
    try:
        config = GetSessionConfig.model_validate(vars(value))
    except ValidationError as error:
        wrong = ", ".join(sorted({str(each["loc"][0]) for each in error.errors()}))
        raise InvalidInputError(f"config has a wrong value in {wrong}.") from None
    if config.after_timestamp is not None and math.isnan(config.after_timestamp):
        raise InvalidInputError("config.after_timestamp must be a number of seconds.")
    return config


def _check_types(*named: tuple[str, object, Any]) -> None:
    for what, value, kind in named:
        if not isinstance(value, kind):
            name = getattr(kind, "__name__", "number")
            raise wrong_type(what, indefinite(name), value)


def check_event_ids(what: str, value: object) -> list[str]:
    """Return a list of strings, which may not be empty."""
    if not isinstance(value, list | tuple | set | frozenset):
        raise wrong_type(what, "a list of ids", value)
    if not value:
        raise InvalidInputError(f"{what} must name an event.")
    return [check_string(f"Each of {what}", each) for each in value]
