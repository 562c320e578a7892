"""Which documents of the sessions collection are sessions to be shown."""

from __future__ import annotations

import math
from typing import Any, Final

from mongo_session_service.errors import quoted

from .bson_values import UnreadableError

_NUMBER: Final = (int, float)


def is_visible(session: dict[str, Any], now: float) -> bool:
    """Whether a document of the sessions collection is a session to be shown.

    The server's filter is :func:`queries.visible`.
    """
    expires = session.get("expire_time", math.inf)
    is_over = isinstance(expires, _NUMBER) and expires <= now
    return "revision" in session and not is_over


def check_session(session: dict[str, Any]) -> None:
    """Refuse what another tool has written, if it cannot be a session's document.

    Raises:
        UnreadableError: it cannot.
    """
    id_ = session["_id"]
    for each in id_.values():
        if not isinstance(each, str):
            raise UnreadableError(f"A session of app {quoted(str(id_['app_name']))}")
    get = session.get
    # Spelt out, since a list asks it of each session.
    if not (
        isinstance(get("state"), dict)
        and isinstance(get("revision"), int)
        and isinstance(get("create_time"), _NUMBER)
        and isinstance(get("update_time"), _NUMBER)
    ):
        raise UnreadableError(f"Session {quoted(id_['session_id'])}")
