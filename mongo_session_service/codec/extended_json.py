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


def tagged(value: Any) -> Any:
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
            items = [[tagged(key), tagged(each)] for key, each in value.items()]
            return {"%object": items}
        case dict():
            return {key: tagged(each) for key, each in value.items()}
        case list() | tuple():
            return list(map(tagged, value))
        case _:
            return value


def _needs_tag(value: dict[str, Any]) -> bool:
    is_tag = len(value) == 1 and next(iter(value)) in _TAGS
    return is_tag or not all(map(is_unicode, value))


def untagged(value: Any) -> Any:
    """The inverse of :func:`tagged`; ``ValueError`` if a tag holds something else."""
    match value:
        case {"%bytes": str(text)} if len(value) == 1:
            return base64.b64decode(text, validate=True)
        case {"%float": ("nan" | "inf" | "-inf") as text} if len(value) == 1:
            return float(text)
        case {"%text": str(text)} if len(value) == 1:
            return base64.b64decode(text).decode("utf-8", "surrogatepass")
        case {"%object": list(items)} if len(value) == 1:
            return {untagged(key): untagged(each) for key, each in items}
        case dict():
            return {key: untagged(each) for key, each in value.items()}
        case list() | tuple():
            return list(map(untagged, value))
        case _:
            return value
