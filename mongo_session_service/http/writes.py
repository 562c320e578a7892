"""Writes over HTTP: what a request asks to change, and whether its sender may ask."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request

from mongo_session_service.errors import InvalidInputError
from mongo_session_service.http import lists
from mongo_session_service.model.records import SessionKey, session_key
from mongo_session_service.service import MongoSessionService

FORK: Final = "fork"
UPDATE: Final = "update"
DELETE: Final = "delete"

_ARGUMENTS: Final = {FORK: ("at_revision",), UPDATE: ("title", "labels"), DELETE: ()}
"""What each action takes beside the session."""

ACTIONS: Final = tuple(_ARGUMENTS)

_MAX_BYTES: Final = 65_536


class RefusedRequestError(Exception):
    """A request that is refused before anybody is asked, with its status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Write(NamedTuple):
    """A change that a request asks for."""

    key: SessionKey
    action: str
    arguments: dict[str, Any]

    @classmethod
    async def of(cls, request: Request) -> Write:
        """Read the change that a request asks for.

        Raises:
            RefusedRequestError: it may come from another site, or is not JSON.
            InvalidInputError: the action or one of its arguments is unknown.
        """
        # A browser sets Origin itself, and asks before it sends JSON to another site.
        origin = urlsplit(request.headers.get("origin", "")).netloc
        if not origin or origin != request.headers.get("host"):
            raise RefusedRequestError(
                403, "Writing needs an Origin header of this server."
            )
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind.lower() != "application/json":
            raise RefusedRequestError(415, "Send JSON, as application/json.")
        fields = await _fields(request)
        action = fields.pop("action", None)
        if not isinstance(action, str) or action not in _ARGUMENTS:
            names = ", ".join(map(repr, _ARGUMENTS))
            raise InvalidInputError(f"action must be one of {names}.")
        key = session_key(*(fields.pop(name, None) for name in SessionKey._fields))
        if unknown := fields.keys() - {*_ARGUMENTS[action]}:
            message = f"{action!r} does not take {', '.join(sorted(unknown))}."
            raise InvalidInputError(message)
        return cls(key, action, fields)

    async def perform(self, service: MongoSessionService) -> tuple[int, dict[str, Any]]:
        """Make the change; return the status, and the session as it is then."""
        match self.action:
            case "fork":
                forked = await service.fork_session(**self.key.id, **self.arguments)
                return 201, self.key._replace(session_id=forked.id)._asdict()
            case "update":
                updated = await service.update_session(**self.key.id, **self.arguments)
                return 200, lists.row(updated)
            case _:
                await service.delete_session(**self.key.id)
                return 200, self.key._asdict()


async def _fields(request: Request) -> dict[str, Any]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise RefusedRequestError(413, f"Send {_MAX_BYTES:,} bytes at most.")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidInputError("The body must be a JSON object.")
    return fields
