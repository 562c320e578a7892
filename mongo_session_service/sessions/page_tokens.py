"""What a caller brings back for the next page: a place in one search, sealed.

The seal is an HMAC over place and search, under a key that every process of a database
shares. So a token that was altered, made up, or is another search's is refused.
"""

from __future__ import annotations

import base64
import hmac
from typing import Final

import bson

from mongo_session_service.errors import InvalidInputError

from .search import Place, Search

_SEAL: Final = 16  # bytes
_LONGEST: Final = 20_000
"""Characters; ids of the greatest length take two thirds of it."""
_REFUSED: Final = (
    "page_token is none that this search has returned. Ask with the same arguments as"
    " for the page before, but for limit and with_state; or begin anew, without."
)


def token(place: Place, search: Search, key: bytes) -> str:
    """The token of the page that begins after a place."""
    content = bson.encode(place._asdict())
    return _text(_seal(content, search, key) + content)


def place_in(token: object, search: Search, key: bytes) -> Place:
    """The place that a token of the same search names.

    Raises:
        InvalidInputError: it is none.
    """
    if not isinstance(token, str):
        kind = type(token).__name__
        raise InvalidInputError(f"page_token must be a string, not {kind}.")
    sealed = _bytes(token) if len(token) <= _LONGEST else b""
    seal, content = sealed[:_SEAL], sealed[_SEAL:]
    if not hmac.compare_digest(seal, _seal(content, search, key)):
        raise InvalidInputError(_REFUSED)
    return Place(**bson.decode(content))


def _text(sealed: bytes) -> str:
    return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """The inverse of :func:`_text`; nothing of what is none of its texts."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        sealed = base64.b64decode(padded, b"-_", validate=True)
    except ValueError:
        return b""
    return sealed if _text(sealed) == text else b""


def _seal(content: bytes, search: Search, key: bytes) -> bytes:
    # The content tells its own length at its beginning.
    return hmac.digest(key, content + search.bytes, "sha256")[:_SEAL]
