"""Event fields: ADK ``Event`` objects to and from plain fields.

:mod:`documents` makes of them what is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import Enum
from functools import cache, partial
from operator import itemgetter
from typing import Any, Final, NamedTuple, get_args, get_origin

from google.adk.events.event import Event, NodeInfo
from google.adk.events.event_actions import EventActions
from google.genai import types
from pydantic import BaseModel, ValidationError
from pydantic_core import SchemaValidator

from mongo_session_service.errors import InvalidInputError
from mongo_session_service.model.wording import indefinite

_FIELDS: Final = frozenset(Event.model_fields)
_DICTS_OF_ACTIONS: Final = [
    name
    for name, field in EventActions.model_fields.items()
    if field.default_factory is dict
]
_NEVER_NONE: Final = ("invocation_id", "author", "actions", "node_info", "timestamp")
_NUMBERS: Final = (int, float)
_PLAIN: Final = (dict, float)
_NO_NODE: Final = NodeInfo().model_dump(exclude_none=True)


def build_event(fields: dict[str, Any]) -> Event:
    """Build the event that ``Event.model_validate`` makes of fields."""
    if not _FIELDS.issuperset(fields):
        return Event.model_validate(fields)
    event: Event = _validator().validate_python(fields)
    return event


_CHECKS: Final = ("_accept_convenience_kwargs", "_check_field_type_mismatches")
"""Functions that ADK and its model library run before validation: for short forms, as
in ``Event(state=...)``, and to warn of models among the fields. Stored fields have none
of them."""

_INITIALIZED: Final = (types.Part,)
"""Models with an ``__init__`` for short forms, such as ``Part("text")``."""


@cache
def _validator() -> SchemaValidator:
    """Validates an event's fields as ``Event`` does, without looking for short forms.

    It takes less than half the time: the rest runs in Python, for every part.
    """
    with suppress(Exception):  # of another release of pydantic
        schema = _plain_schema(Event.__pydantic_core_schema__)
        made = SchemaValidator(schema, None, False)  # noqa: FBT003
        fields = Event(author="a", content=types.UserContent("b")).model_dump()
        if made.validate_python(fields) == Event.model_validate(fields):
            return made
    return Event.__pydantic_validator__  # type: ignore[return-value]


def build_known_event(fields: dict[str, Any]) -> Event:
    """Build an event as :func:`build_event` does, if that has all of these fields.

    ADK leaves out what it does not know, such as what a later release has stored.
    """
    event: Event = _strict_validator().validate_python(fields)
    return event


@cache
def _strict_validator() -> SchemaValidator:
    schema = _plain_schema(Event.__pydantic_core_schema__, is_strict=True)
    return SchemaValidator(schema, None, False)  # noqa: FBT003


def _plain_schema(schema: Any, *, is_strict: bool = False) -> Any:
    """A schema of pydantic's without checks and initialisation in Python.

    If it is strict, no model in it ignores a field that it does not have.
    """
    plain_part = partial(_plain_schema, is_strict=is_strict)
    if isinstance(schema, list | tuple):
        return type(schema)(map(plain_part, schema))
    if not isinstance(schema, dict):
        return schema
    function = schema.get("function")
    if isinstance(function, dict) and (
        getattr(function["function"], "__name__", None) in _CHECKS
    ):
        return plain_part(schema["schema"])
    plain = {name: plain_part(each) for name, each in schema.items()}
    if plain.get("cls") in _INITIALIZED:
        plain["custom_init"] = False
    extra = plain.get("config", {}).get("extra_fields_behavior", "ignore")
    if is_strict and plain.get("type") == "model" and extra == "ignore":
        plain["config"] |= {"extra_fields_behavior": "forbid"}
    return plain


def is_event(fields: dict[str, Any]) -> bool:
    """True if these are fields of an event, and of nothing else."""
    with suppress(ValidationError):
        build_event(fields)
        return _FIELDS.issuperset(fields)
    return False


def dump_event(event: Event) -> tuple[dict[str, Any], bool]:
    """Dump an event's fields; return also whether they may not be readable again.

    Fields can be assigned anything, and an event that cannot be read would make its
    whole session unreadable. If that is certain, it is an ``InvalidInputError``.
    """
    document = _dump_ordinary(event)
    if document is not None:
        return document, False
    fields, actions = event.__dict__, event.actions
    for name in _NEVER_NONE:
        if fields[name] is None:
            raise InvalidInputError(f"its {name} is None")
    if not isinstance(actions, EventActions):
        raise InvalidInputError("its actions are not EventActions")
    fields = actions.__dict__
    for name in _DICTS_OF_ACTIONS:
        if not isinstance(fields[name], dict):
            raise InvalidInputError(f"its actions.{name} is not a dict")
    document, is_doubtful = _dump(event)
    if not math.isfinite(document["timestamp"]):
        raise InvalidInputError("its timestamp is not a finite number")
    for call_id, config in actions.requested_auth_configs.items():
        is_doubtful = True
        if isinstance(config, BaseModel):
            # Security schemes are read back by their aliases only.
            document["actions"]["requested_auth_configs"][call_id] = config.model_dump(
                by_alias=True, exclude_none=True
            )
    return document, is_doubtful


def _dump_ordinary(event: Event) -> dict[str, Any] | None:
    """Dump an event whose actions are a delta of state and no more, as most are.

    The delta is left to the caller. ADK serializes it, and the rest of the actions, in
    Python, which would take longer than the whole rest.
    """
    actions, node = event.actions, event.node_info
    is_ordinary = (
        type(event) is Event
        and type(actions) is EventActions
        and _other_actions(actions.__dict__) == _NO_ACTIONS
        and isinstance(actions.state_delta, dict)
    )
    if not is_ordinary:
        return None
    document: dict[str, Any] = {}
    try:
        left_out = node if node.__dict__ == _NO_NODE_FIELDS else None
        for name, value in event.__dict__.items():
            if value is None or value is left_out:
                continue
            if type(value) is not _KINDS[name]:
                return None
            document[name] = {} if value is actions else _dump_field(value)
        is_whole = document.keys() >= _OF_ORDINARY
        return document if is_whole and math.isfinite(document["timestamp"]) else None
    except Exception:  # noqa: BLE001  a serializer's, which may quote values
        return None


def _dump_field(value: Any) -> Any:
    """Dump a value that has the class of its field."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set):
        return sorted(map(str.__str__, value))  # so that equals are equal
    if not is_as_declared(value):
        raise TypeError
    serializer = type(value).__pydantic_serializer__
    return serializer.to_python(value, exclude_none=True, warnings="error")


def _dump(event: Event) -> tuple[dict[str, Any], bool]:
    # Of a None in a dict, and of one model in the place of another, pydantic does not
    # warn.
    is_doubtful = bool(event.actions.artifact_delta) or not is_as_declared(event)
    with suppress(Exception):  # serializers may raise anything, quoting values
        document = event.model_dump(exclude_none=True, warnings="error")
        document["timestamp"] = float(event.timestamp)
        if ids := document.get("long_running_tool_ids"):
            document["long_running_tool_ids"] = sorted(ids)  # so that equals are equal
        return document, is_doubtful
    try:
        document = event.model_dump(exclude_none=True, warnings=False)
        document["timestamp"] = float(event.timestamp)
    except Exception:  # noqa: BLE001  as above
        raise InvalidInputError("a field of it has no JSON form") from None
    return document, True


def check_readable(fields: dict[str, Any]) -> None:
    try:
        Event.model_validate(fields)
    except ValidationError as error:
        wrong = {_field_path(each["loc"]) for each in error.errors()}
        message = f"wrong type in {', '.join(sorted(wrong))}"
        raise InvalidInputError(message) from None
    except Exception:  # noqa: BLE001  ADK's enumerations stumble over other types
        raise InvalidInputError("a field of it has a wrong type") from None


def is_as_declared(model: BaseModel) -> bool:
    """True if the models, dicts and floats in it have the types of its fields.

    An object that no field could be made of is an ``InvalidInputError``.
    """
    declared, values = _declared_types(type(model)), model.__dict__
    try:
        found = declared.values_of(values)
    except KeyError:  # it was made without validation
        found = tuple(values.get(name) for name in declared.classes)
    kinds = (*map(type, found),)
    inner = declared.inner.get(kinds)
    if inner is None:
        inner = declared.inner[kinds] = [
            (number, classes)
            for number, classes in enumerate(declared.classes.values())
            if found[number] is not None
            and not (kinds[number] in _PLAIN and kinds[number] in classes)
        ]
    return all(_has_classes(found[number], classes) for number, classes in inner)


def _has_classes(value: Any, classes: tuple[type[Any], ...]) -> bool:
    parts: Iterable[Any] = (value,)
    if isinstance(value, list):
        parts = value
    elif isinstance(value, dict) and dict not in classes:
        parts = value.values()
    for each in parts:
        if isinstance(each, classes):
            if not isinstance(each, _PLAIN) and not is_as_declared(each):
                return False
        elif hasattr(each, "__dict__") and not isinstance(each, _NUMBERS):
            kind, wanted = (indefinite(it.__name__) for it in (type(each), classes[0]))
            raise InvalidInputError(f"it has {kind} instead of {wanted}")
        else:
            return False
    return True


class _Declared(NamedTuple):
    """The fields of a model that hold models, dicts of anything or floats."""

    classes: dict[str, tuple[type, ...]]
    values_of: Callable[[dict[str, Any]], tuple[Any, ...]]
    """Gets their values from those of all fields."""
    inner: dict[tuple[type, ...], list[tuple[int, tuple[type, ...]]]]
    """Of values of these types, which have to be looked into, and their classes."""


@cache
def _declared_types(model: type[BaseModel]) -> _Declared:
    classes = {
        name: found
        for name, field in model.model_fields.items()
        if (found := tuple(_classes(field.annotation)))
    }
    if len(classes) > 1:
        return _Declared(classes, itemgetter(*classes), {})
    # Of one name, it would not get a tuple.
    values_of = lambda values: (*map(values.__getitem__, classes),)  # noqa: E731
    return _Declared(classes, values_of, {})


def _classes(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type):
        if issubclass(annotation, BaseModel | dict | float):
            yield annotation
        return
    inner = [each for arg in get_args(annotation) for each in _classes(arg)]
    yield from inner or ([dict] if get_origin(annotation) is dict else [])


def _field_path(location: tuple[str | int, ...]) -> str:
    """An event's field, without what may be a key of its value."""
    levels = 2 if location[0] == "actions" else 1
    return ".".join(map(str, location[:levels]))


_OTHER_ACTIONS: Final[dict[str, dict[str, Any] | None]] = {
    name: {} if field.default_factory is dict else None
    for name, field in EventActions.model_fields.items()
    if name != "state_delta"
}
_NO_ACTIONS: Final = tuple(_OTHER_ACTIONS.values())
_NO_NODE_FIELDS: Final = NodeInfo().__dict__
_other_actions: Final = itemgetter(*_OTHER_ACTIONS)
_OF_ORDINARY: Final = {*_NEVER_NONE} - {"node_info"}
_SCALARS: Final = (str, float, bool)
_KINDS: Final = {
    name: kind
    for name, field in Event.model_fields.items()
    for each in (field.annotation, *get_args(field.annotation))
    if isinstance(kind := get_origin(each) or each, type)
    and issubclass(kind, (*_SCALARS, set, Enum, BaseModel))
}
"""The class of each field of an event, where it is one of these."""


def drop_defaults(document: dict[str, Any]) -> None:
    """Remove default values from an event's fields, a quarter of an ordinary one."""
    actions = document["actions"]
    for name in [*actions]:
        if name in _DICTS_OF_ACTIONS and not actions[name]:
            del actions[name]
    if document.get("node_info") == _NO_NODE:
        del document["node_info"]
