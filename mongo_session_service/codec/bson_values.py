"""BSON values: single JSON values and state keys to and from BSON, exactly.

A value is stored natively, so that it can be queried, but for the parts BSON cannot
hold exactly: each of those is stored alone as ``{"%json": "<text>"}``. State keys are
escaped reversibly, because they become paths in updates. What this module accepts it
returns type for type; what it cannot, it refuses with ``InvalidInputError``. Reading
what another tool has stored may raise :class:`UnreadableError`.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, Literal

import bson
from bson import Int64, codec_options
from bson.errors import BSONError
from pydantic_core import to_jsonable_python

from mongo_session_service.errors import InvalidInputError, StorageError

logger = logging.getLogger(__name__)

MAX_NATIVE_DEPTH: Final = 60
"""Levels of a value kept native: the server allows 100, also where it lies in an
event's delta."""

MAX_DEPTH: Final = 250
"""Levels of a value: as many as JSON text can be parsed with in any call stack."""

MAX_KEY_LENGTH: Final = 4096
"""Characters of a state key."""

WRAPPER: Final = "%json"
"""The one field name that user data never has natively."""


class _PlainInt(codec_options.TypeDecoder):
    """Reads 64-bit integers as the ``int`` they were written from."""

    bson_type = Int64

    def transform_bson(self, value: Int64) -> int:
        return int(value)


CODEC_OPTIONS: Final = codec_options.CodecOptions[dict[str, Any]](
    type_registry=codec_options.TypeRegistry([_PlainInt()]),
    # Otherwise one value of another tool would fail the whole read.
    datetime_conversion=codec_options.DatetimeConversion.DATETIME_AUTO,
    unicode_decode_error_handler="replace",
)
"""How every document is decoded."""


def decode_bson(document: bytes) -> dict[str, Any]:
    """Decode a document, of which what is wrapped stays so."""
    return bson.decode(document, CODEC_OPTIONS)


_TOO_DEEP: Final = f"it has more than {MAX_DEPTH} levels, or contains itself"
_ENDLESS: Final = ("Maximum serialization depth", "Circular reference")
"""Beginnings of pydantic's messages about them."""

SCALARS: Final = {str, int, float, bool, type(None)}
_LEAVES: Final = {*SCALARS, bytes}
_CONTAINERS: Final = {dict, list, tuple}
_AS_THEY_ARE: Final = {float, bool, bytes, type(None)}
_BYTES_LIKE: Final = (bytes, bytearray, memoryview)
_INT64: Final = range(-(2**63), 2**63)
_ESCAPES: Final = (("%", "%25"), (".", "%2E"), ("$", "%24"), ("\0", "%00"))
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE: Final = re.compile("%u([0-9A-F]{4})")
_NOT_A_FIELD_NAME: Final = re.compile("[\0\ud800-\udfff]|\\A%json\\Z")


class UnreadableError(StorageError):
    """A stored value is not as this package stores it; it is not quoted."""

    def __init__(self, what: object = "What is stored") -> None:
        super().__init__(
            f"{what} is not as this package stores it, and cannot be read. Does another"
            " tool write there?"
        )


@lru_cache(maxsize=1024)
def escape_key(key: str) -> str:
    """Escape a state key to a field name that is safe in update paths and queries."""
    for character, escape in _ESCAPES:
        key = key.replace(character, escape)
    return _SURROGATE.sub(lambda match: f"%u{ord(match[0]):04X}", key) or "%"


def unescape_key(name: str) -> str:
    """The inverse of :func:`escape_key`."""
    if "%" not in name:
        return name
    if name == "%":
        return ""
    if "%u" in name:
        name = _ESCAPED_SURROGATE.sub(lambda match: chr(int(match[1], 16)), name)
    for character, escape in reversed(_ESCAPES):
        name = name.replace(escape, character)
    return name


def encode_native(fields: dict[str, Any]) -> bytes | None:
    """Encode fields if BSON holds all values as they are; else return None."""
    if not _is_native(fields.values(), MAX_NATIVE_DEPTH):
        return None
    try:  # it refuses what else would have to be wrapped, but for two keys
        encoded = bson.encode(fields)
    except (BSONError, ValueError, OverflowError):
        return None
    is_odd = b"%json\0" in encoded or b"$ref\0" in encoded
    return None if is_odd else encoded


def _is_native(values: Iterable[Any], levels: int) -> bool:
    for each in values:
        kind = type(each)
        if kind in _LEAVES:
            continue
        if kind in _CONTAINERS and levels:
            inner = each.values() if kind is dict else each
            if not _is_native(inner, levels - 1):
                return False
        elif not isinstance(each, str) or each != getattr(each, "value", None):
            return False  # but for members of enumerations of text
    return True


def encode_value(value: Any, depth: int = 0) -> Any:
    """Encode a JSON value, or bytes, exactly in BSON: native or wrapped.

    What is like bytes is stored as bytes, anything else in its :func:`json_form`.
    """
    kind = type(value)
    if kind is str:
        return value if is_unicode(value) else _wrap(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is int:
        return value if value in _INT64 else _wrap(value)
    if kind is dict:
        return _encode_dict(value, depth)
    if kind is list or kind is tuple:
        if depth == MAX_NATIVE_DEPTH:
            return _wrap(value)
        return [encode_value(item, depth + 1) for item in value]
    if isinstance(value, _BYTES_LIKE):
        with suppress(ValueError):  # a view that was released
            return memoryview(value).tobytes()
    return encode_value(_json_text_form(value), depth)


def encode_values(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: encode_value(value) for key, value in state.items()}


def _is_odd(key: str, value: Mapping[str, Any]) -> bool:
    """Whether a dict with this key, which is no identifier, has to be wrapped."""
    # The driver would read it as a reference, not as a dict.
    is_reference = key == "$ref" and "$id" in value
    return is_reference or _NOT_A_FIELD_NAME.search(key) is not None


def _encode_dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    if depth == MAX_NATIVE_DEPTH:
        return _wrap(value)
    if any(type(key) is not str for key in value):
        return _encode_dict(_json_text_form(value), depth)
    if any(not key.isidentifier() and _is_odd(key, value) for key in value):
        return _wrap(value)
    return {key: encode_value(item, depth + 1) for key, item in value.items()}


def decode_value(value: Any) -> Any:
    """The inverse of :func:`encode_value`."""
    if type(value) is dict:
        if WRAPPER in value:
            return _unwrap(value[WRAPPER])
        return {key: decode_value(item) for key, item in value.items()}
    if type(value) is list:
        return [decode_value(item) for item in value]
    return value


def is_same_value(one: Any, other: Any) -> bool:
    """True if two decoded values are equal type for type, in any order of keys."""
    pairs = [(one, other)]  # a call for each level would need a shallow call stack
    while pairs:
        one, other = pairs.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            if one.keys() != other.keys():
                return False
            pairs += ((each, other[key]) for key, each in one.items())
        elif isinstance(one, list) and isinstance(other, list):
            if len(one) != len(other):
                return False
            pairs += zip(one, other, strict=True)
        elif not _is_same_scalar(one, other):
            return False
    return True


def _is_same_scalar(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)  # NaN is NaN, and 0.0 is not -0.0
    # The driver reads some ints as a class of its own.
    kinds = [int if type(each) is Int64 else type(each) for each in (one, other)]
    return kinds[0] is kinds[1] and bool(one == other)


def encode_fields(state: Mapping[str, Any]) -> dict[str, Any]:
    """Encode one scope's state, or a delta to it, as fields of its document."""
    return {escape_key(key): encode_value(value) for key, value in state.items()}


def decode_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`encode_fields`."""
    return {
        unescape_key(name) if "%" in name else name: (
            decode_value(value) if type(value) in _CONTAINERS else value
        )
        for name, value in fields.items()
    }


def is_decoded(fields: Mapping[str, Any]) -> bool:
    """True if :func:`decode_fields` would certainly change nothing."""
    is_plain = SCALARS.issuperset(map(type, fields.values()))
    return is_plain and "%" not in "".join(fields)


def json_form(
    value: Any,
    where: str = "An event",
    *,
    bytes_mode: Literal["utf8", "base64"] = "utf8",
) -> Any:
    """Return the form that ADK's SQL service would store for a value.

    JSON stays as it is; dates, sets, models and bytes become what pydantic makes of
    them; a function or an open file becomes text, and a warning names ``where``. That
    service stores bytes of state as UTF-8, and those of events as base64.
    """
    try:
        return to_jsonable_python(value, bytes_mode=bytes_mode)
    except UnicodeDecodeError:
        raise InvalidInputError("it holds bytes that are not UTF-8") from None
    except Exception:  # noqa: BLE001  a value's own code may raise anything
        if is_json(value):  # deeper, or with stranger keys, than pydantic takes
            return value
    try:
        form = to_jsonable_python(value, serialize_unknown=True, bytes_mode=bytes_mode)
    except Exception as error:  # noqa: BLE001
        # No text is asked of errors that the value's own code may have made.
        is_endless = type(error) is ValueError and str(error).startswith(_ENDLESS)
        message = _TOO_DEEP if is_endless else "it has no JSON form"
        raise InvalidInputError(message) from None
    logger.warning("%s holds a value that is not JSON; its text is stored.", where)
    return form


def is_unicode(text: str) -> bool:
    """True if a string has no lone surrogate, which UTF-8 cannot hold."""
    if text.isascii():
        return True
    try:
        text.encode()  # a pattern takes longer
    except UnicodeEncodeError:
        return False
    return True


def is_json(value: Any) -> bool:
    """True if a value has JSON's types alone and is not too deep to read back."""
    level = [value]
    for _ in range(MAX_DEPTH):
        # Once each, so that neither cycles nor shared parts make a level grow.
        nested = {id(node): node for node in level if type(node) not in SCALARS}
        level = []
        for node in nested.values():
            if type(node) not in _CONTAINERS:
                return False
            if type(node) is dict and any(type(key) is not str for key in node):
                return False
            level += node.values() if type(node) is dict else node
        if not nested:
            return True
    return False


def _wrap(value: Any) -> dict[str, Any]:
    try:
        text = json.dumps(value, ensure_ascii=False, default=_json_text_form)
    except InvalidInputError:
        raise
    except (TypeError, ValueError, RecursionError):  # may quote the value
        raise InvalidInputError("it has no JSON form") from None
    if not is_json(json.loads(text)):
        raise InvalidInputError(_TOO_DEEP)
    # A lone surrogate fits neither a BSON string nor JSON's escapes, which would
    # join two neighbours into one character; as bytes it does.
    is_text = is_unicode(text)
    return {WRAPPER: text if is_text else text.encode("utf-8", "surrogatepass")}


def _json_text_form(value: Any) -> Any:
    """The JSON form of what an event holds, where bytes cannot stay as they are."""
    return json_form(value, bytes_mode="base64")


def _unwrap(text: str | bytes) -> Any:
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8", "surrogatepass")
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):  # may quote the value
        raise UnreadableError from None
