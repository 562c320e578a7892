r"""Public view: what may leave the process of an event, a delta or a state, as JSON.

It is what ADK's own REST server sends, on every release of ADK: without credentials,
and without the metadata that ADK keeps for itself; also without credentials which that
server sends: in strings of JSON, under ADK's keys for cached tokens, and as Google's
libraries and OAuth write them. Everything that can be stored has such a view. What JSON
has no place for takes these forms:

- bytes: URL-safe base64, with padding;
- NaN and the infinities: null;
- half of a surrogate pair, in keys as well: JSON's escape, as in ``"\ud800"``;
- values that only another tool can have stored: their text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from google.adk.auth.auth_credential import AuthCredentialTypes
from google.adk.events.event import Event
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

_INTERNAL: Final = "__adk_internal_"
"""Prefix of the names of metadata that ADK keeps for itself."""

_METADATA: Final = "customMetadata"

_AUTH_TYPES: Final = frozenset(
    spelling
    for each in AuthCredentialTypes
    for spelling in (each.value, each.name, each.name.lower())
)


def _spellings(*names: str) -> frozenset[str]:
    """Spell names in snake case, and in the camel case that aliases have."""
    words = [name.split("_") for name in names]
    camel = [first + "".join(map(str.title, rest)) for first, *rest in words]
    return frozenset([*names, *camel])


_SECRETS: Final = _spellings(
    *("password", "token", "access_token", "refresh_token", "id_token", "api_key"),
    *("client_secret", "auth_code", "auth_response_uri", "code_verifier"),
    *("private_key", "private_key_id", "additional_headers", "rapt_token"),
)
_OF_OAUTH: Final = _spellings("client_id", "token_type", "token_uri")
_SECRETS_OF_OAUTH: Final = _spellings(
    *("access_token", "client_secret", "id_token", "private_key", "refresh_token")
)
"""Those beside which one of the others makes an object a credential."""
_AUTH_TYPE: Final = _spellings("auth_type")
_AUTH_CONFIG: Final = _spellings("auth_config")
_REQUESTED: Final = _spellings("requested_auth_configs")
_ANSWER: Final = frozenset(["response"])
_CREDENTIALS: Final = _spellings("raw_auth_credential", "exchanged_auth_credential")
_CREDENTIAL_REQUEST: Final = "adk_request_credential"
"""The function that ADK has a client call, or answer, to ask for a credential."""
_HOLDERS: Final = _REQUESTED | _CREDENTIALS | {"name"}
_MARKS: Final = _AUTH_TYPE | _OF_OAUTH
_TOKEN_CACHE: Final = "_token_cache"  # noqa: S105  the end of a name
"""How the state keys end under which tools of ADK keep tokens, as a string of JSON."""
_JSON_BEGINS: Final = frozenset('{["')
_NAMES_IN_TEXT: Final = re.compile(r"""["'](\w{5,20})\\*["'](?:\s|\\+[nrt])*:""")
"""Names of fields in JSON, in JSON inside JSON, or in what resembles it."""
_ESCAPE: Final = re.compile(r"\\{1,16}u([0-9a-fA-F]{4})")
_WITHHELD: Final = "[withheld]"
"""In place of text that resembles JSON with secrets, and cannot be parsed."""


def json_text(fields: Mapping[str, Any]) -> str:
    """Write the public view of named events, deltas, states and values as JSON."""
    view = public_view(fields)
    text = json.dumps(view, ensure_ascii=False, separators=(",", ":"))
    # It knows whether it is ASCII; encoding makes a copy.
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def public_view(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the public view of named events, deltas, states and plain values."""
    view = {}
    for name, value in fields.items():
        plain = _to_plain(value)
        if isinstance(value, Event):
            _drop_internal(plain)
        view[name] = _without_credentials(plain)
    return view


def is_withheld(fields: Mapping[str, Any]) -> bool:
    """True if the public view leaves anything of them out."""
    return public_view(fields) != {name: _to_plain(it) for name, it in fields.items()}


def _to_plain(value: Any) -> Any:
    """Convert a value to JSON's types; what JSON calls constants are no numbers."""
    text = json.dumps(value, ensure_ascii=False, default=_json_form)
    return json.loads(text, parse_constant=lambda _: None)


def _json_form(value: Any) -> Any:
    if isinstance(value, BaseModel):  # by the names of ADK's REST API
        return value.model_dump(by_alias=True, exclude_none=True, warnings=False)
    if isinstance(value, bytes):
        return base64.urlsafe_b64encode(value).decode()
    if isinstance(value, set | frozenset):
        return list(value)
    try:
        return to_jsonable_python(value, serialize_unknown=True)
    except Exception:  # noqa: BLE001  a value's own code may raise anything
        return type(value).__name__


def _drop_internal(event: dict[str, Any]) -> None:
    metadata = event.get(_METADATA)
    if not isinstance(metadata, dict):
        return
    kept = {k: value for k, value in metadata.items() if not k.startswith(_INTERNAL)}
    event[_METADATA] = kept
    if metadata and not kept:
        del event[_METADATA]


def _without_credentials(value: Any) -> Any:
    """Return a value in JSON's types, without the secrets of credentials in it."""
    if type(value) is str:
        return _text_without_credentials(value)
    if type(value) is list:
        return list(map(_without_credentials, value))
    if type(value) is not dict:
        return value
    if not _MARKS.isdisjoint(value) and _is_credential(value):
        return _without_secrets(value)
    if _TOKEN_CACHE in "".join(value):
        value = {
            name: each for name, each in value.items() if not _is_cached(name, each)
        }
    view = dict(zip(value, map(_without_credentials, value.values()), strict=True))
    if _HOLDERS.isdisjoint(value):
        return view
    if value.get("name") == _CREDENTIAL_REQUEST:
        args = value.get("args")
        if isinstance(args, dict):
            view["args"] = args | _pick_without_secrets(args, _AUTH_CONFIG)
        return view | _pick_without_secrets(value, _ANSWER)
    return view | (
        _pick_without_secrets(value, _REQUESTED)
        or _pick_without_secrets(value, _CREDENTIALS)
    )


def _is_cached(name: str, value: Any) -> bool:
    return name.endswith(_TOKEN_CACHE) and isinstance(value, str | dict | list)


def _text_without_credentials(text: str) -> str:
    if text.lstrip()[:1] not in _JSON_BEGINS:
        return text
    plain = _ESCAPE.sub(lambda it: chr(int(it[1], 16)), text)
    is_named = not _SECRETS.isdisjoint(_NAMES_IN_TEXT.findall(plain))
    if not is_named and plain == text:
        return text
    try:  # within it, names may be escaped once more
        value = json.loads(text)
        view = _without_credentials(value)
        return text if view == value else json.dumps(view, ensure_ascii=False)
    except (ValueError, RecursionError):
        return _WITHHELD if is_named else text


def _pick_without_secrets(
    holder: dict[str, Any], names: frozenset[str]
) -> dict[str, Any]:
    return {name: _without_secrets(holder[name]) for name in names & holder.keys()}


def _is_credential(value: dict[str, Any]) -> bool:
    types = [value[name] for name in _AUTH_TYPE & value.keys()]
    is_adks = any(isinstance(each, str) and each in _AUTH_TYPES for each in types)
    is_of_oauth = not _OF_OAUTH.isdisjoint(value)
    return is_adks or (is_of_oauth and not _SECRETS_OF_OAUTH.isdisjoint(value))


def _without_secrets(value: Any) -> Any:
    if type(value) is list:
        return list(map(_without_secrets, value))
    if type(value) is not dict:
        return _without_credentials(value)
    kept = {key: each for key, each in value.items() if key not in _SECRETS}
    return dict(zip(kept, map(_without_secrets, kept.values()), strict=True))
