"""Extended JSON: values as strict JSON, with type tags for what JSON cannot hold.

That is an object of one field: ``{"%bytes": "<base64>"}``, ``{"%float": "nan"}``,
``{"%text": "<base64>"}`` for a string with a lone surrogate, and ``{"%object": [[key,
value], ...]}`` for an object that has such a key or looks like one of these four.
"""

from __future__ import annotations

import base64
import math
from typing import Any, Final

from mongo_session_service.codec.bson_values import is_unicode

_TAGS: Final = ("%bytes", "%float", "%text", "%object")


def with_type_tags(value: Any) -> Any:
    """Tag what JSON cannot hold in a value, so that it is strict JSON."""
    match value:
        case bytes():
            return {"%bytes": base64.b64encode(value).decode()}
        case float() if not math.isfinite(value):
            return {"%float": repr(value)}
        case str() if not is_unicode(value):
            text = value.encode("utf-8", "surrogatepass")
            return {"%text": base64.b64encode(text).decode()}
        case dict() if _needs_tag(value):
            items = [
                [with_type_tags(key), with_type_tags(each)]
                for key, each in value.items()
            ]
            return {"%object": items}
        case dict():
            return {key: with_type_tags(each) for key, each in value.items()}
        case list() | tuple():
            return list(map(with_type_tags, value))
        case _:
            return value


def _needs_tag(value: dict[str, Any]) -> bool:
    is_tag = len(value) == 1 and next(iter(value)) in _TAGS
    return is_tag or not all(map(is_unicode, value))


def without_type_tags(value: Any) -> Any:
    """Undo :func:`with_type_tags`; ``ValueError`` if a tag has another value."""
    match value:
        case {"%bytes": str(text)} if len(value) == 1:
            return base64.b64decode(text, validate=True)
        case {"%float": ("nan" | "inf" | "-inf") as text} if len(value) == 1:
            return float(text)
        case {"%text": str(text)} if len(value) == 1:
            return base64.b64decode(text).decode("utf-8", "surrogatepass")
        case {"%object": list(items)} if len(value) == 1:
            return {
                without_type_tags(key): without_type_tags(each) for key, each in items
            }
        case dict():
            return {key: without_type_tags(each) for key, each in value.items()}
        case list() | tuple():
            return list(map(without_type_tags, value))
        case _:
            return value
