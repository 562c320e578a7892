"""ADK's ``Event`` objects, taken apart into their fields and built from them."""

from __future__ import annotations

import math
from typing import Any, Final

from google.adk.events.event import Event, NodeInfo
from google.adk.events.event_actions import EventActions
from pydantic import BaseModel, ValidationError, model_validator

from .errors import InvalidInputError

_FIELDS: Final = frozenset(Event.model_fields)
_DICTS_OF_ACTIONS: Final = [
    name
    for name, field in EventActions.model_fields.items()
    if field.default_factory is dict
]
_NEVER_NONE: Final = ("invocation_id", "author", "actions", "node_info", "timestamp")
_NO_NODE: Final = NodeInfo().model_dump(exclude_none=True)


class _FieldsOnly(Event):
    """An event of which nothing but fields is given.

    Before it validates, ADK looks for shorter forms of some, as in
    ``Event(state=...)``: a sixth of the time that a plain event takes.
    """

    @model_validator(mode="before")
    @classmethod
    def _accept_convenience_kwargs(cls, data: Any) -> Any:
        return data


def build_event(fields: dict[str, Any]) -> Event:
    """What ``Event.model_validate`` makes of them.

    Raises:
        ValidationError: they are not an event's.
    """
    if not _FIELDS.issuperset(fields):
        return Event.model_validate(fields)
    event = _FieldsOnly.model_validate(fields)
    object.__setattr__(event, "__class__", Event)
    return event


def is_event(fields: dict[str, Any]) -> bool:
    """Whether these are fields of an event, and of nothing else."""
    try:
        build_event(fields)
    except ValidationError:
        return False
    return _FIELDS.issuperset(fields)


def dump_event(event: Event) -> dict[str, Any]:
    """An event's fields, if it can be read back from them.

    Fields can be assigned anything, and an event that cannot be read would take its
    whole session with it.

    Raises:
        InvalidInputError: it cannot.
    """
    for name in _NEVER_NONE:
        if getattr(event, name) is None:
            raise InvalidInputError(f"its {name} is None")
    try:
        document = event.model_dump(exclude_none=True, warnings="error")
        document["timestamp"] = float(event.timestamp)
        if ids := document.get("long_running_tool_ids"):
            document["long_running_tool_ids"] = sorted(ids)  # so that equals are equal
    except Exception:  # noqa: BLE001  serializers may raise anything, quoting values
        document = _dump_doubtful(event)
    if not math.isfinite(document["timestamp"]):
        raise InvalidInputError("its timestamp is no time")
    for call_id, config in event.actions.requested_auth_configs.items():
        if isinstance(config, BaseModel):
            # Security schemes are read back by their aliases only.
            document["actions"]["requested_auth_configs"][call_id] = config.model_dump(
                by_alias=True, exclude_none=True
            )
    return document


def _dump_doubtful(event: Event) -> dict[str, Any]:
    try:
        document = event.model_dump(exclude_none=True, warnings=False)
        document["timestamp"] = float(event.timestamp)
        Event.model_validate(document)
    except ValidationError as error:
        fields = {".".join(map(str, each["loc"][:2])) for each in error.errors()}
        message = f"wrong type in {', '.join(sorted(fields))}"
        raise InvalidInputError(message) from None
    except Exception:  # noqa: BLE001  as above
        raise InvalidInputError("a field of it has no JSON form") from None
    return document


def drop_defaults(document: dict[str, Any]) -> None:
    """Leave out what an event has anyway, a quarter of an ordinary one."""
    actions = document["actions"]
    for name in _DICTS_OF_ACTIONS:
        if not actions[name]:
            del actions[name]
    if document["node_info"] == _NO_NODE:
        del document["node_info"]
