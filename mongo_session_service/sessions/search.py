"""Search for sessions: filters, pages, and the tokens that continue them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

import bson
from google.adk.sessions.state import State

from mongo_session_service.codec.bson_values import (
    WRAPPER,
    encode_value,
    escape_key,
    json_form,
)
from mongo_session_service.codec.documents import INITIAL, decode_sessions, summary
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.driver import snapshots
from mongo_session_service.driver.connection import Connection
from mongo_session_service.driver.retry import persistently
from mongo_session_service.errors import InvalidInputError, quoted
from mongo_session_service.model.metadata import check_labels, check_title, label_list
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.results import SessionSummary
from mongo_session_service.model.validation import check_flag, check_id
from mongo_session_service.sessions import queries

MAX_DEPTH: Final = 10
"""Levels of lists and dicts that a value of ``where`` may have."""

_OF_OTHERS: Final = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)

MAX_LIMIT: Final = 1000
"""The most sessions on a page."""

_DIGEST: Final = 16
"""Bytes of a token's digest, which come before its place."""

_LONGEST: Final = 20_000
"""Characters of a token; the longest ids take two thirds of it."""

_REFUSED: Final = (
    "page_token was not returned by this search. Repeat the arguments of the previous"
    " page (only limit and with_state may differ), or start again without a page_token."
)


class Place(NamedTuple):
    """A session's place in the order."""

    create_time: float
    user_id: str
    session_id: str

    @classmethod
    def of(cls, document: Document) -> Self:
        """The place of a stored session."""
        id_ = document["_id"]
        return cls(document["create_time"], id_["user_id"], id_["session_id"])


@dataclass(frozen=True, slots=True)
class Search:
    """The checked arguments of a search."""

    filter: Document
    newest_first: bool

    @property
    def bytes(self) -> bytes:
        """An encoding that is equal for equal searches only."""
        return bson.encode({"filter": self.filter, "newest_first": self.newest_first})

    @property
    def order(self) -> dict[str, int]:
        """The sort order of pages."""
        direction = -1 if self.newest_first else 1
        names = ("create_time", "_id.user_id", "_id.session_id")
        return dict.fromkeys(names, direction)

    def stages(
        self, after: Place | None, limit: int, now: float, *, with_state: bool
    ) -> list[Document]:
        """The pipeline that reads a page, which begins after a place, if given."""
        match = {"$and": [self.filter, queries.visible(now), *self._later(after)]}
        return [
            {"$match": match},
            {"$sort": self.order},
            {"$limit": limit},
            {"$project": {INITIAL: 0} if with_state else {INITIAL: 0, "state": 0}},
        ]

    def _later(self, after: Place | None) -> list[Document]:
        """The filters for sessions after a place."""
        if after is None:
            return []
        beyond = "$lt" if self.newest_first else "$gt"
        created, user_id, session_id = after
        of_user = {"_id.user_id": user_id, "_id.session_id": {beyond: session_id}}
        # The first bounds the index scan, the second orders sessions of the same time.
        return [
            {"create_time": {f"{beyond}e": created}},
            {
                "$or": [
                    {"create_time": {beyond: created}},
                    {"_id.user_id": {beyond: user_id}},
                    of_user,
                ]
            },
        ]


def new_search(
    app_name: object,
    user_id: object,
    title: object,
    labels: object,
    where: object,
    *,
    newest_first: object,
    hooks: Hooks,
) -> Search:
    """The search with these arguments; None for those that do not restrict it.

    Raises:
        InvalidInputError: an argument is invalid.
    """
    is_newest_first = check_flag("newest_first", newest_first)
    wanted: Document = {"_id.app_name": check_id("app_name", app_name)}
    owner = Owner(wanted["_id.app_name"])
    if user_id is not None:
        wanted["_id.user_id"] = check_id("user_id", user_id)
        owner = Owner(owner.app_name, wanted["_id.user_id"])
    if title is not None:
        wanted["title"] = {"$eq": check_title(title)}
    conditions: list[Document] = []
    if labels is not None:
        conditions += [{"labels": {"$eq": each}} for each in _label_list(labels)]
    if where is not None:
        conditions += state_conditions(where, owner, hooks)
    return Search({"$and": [wanted, *conditions]}, is_newest_first)


def _label_list(labels: object) -> list[dict[str, str]]:
    return label_list(check_labels(labels))


def check_limit(limit: object) -> int:
    """Return ``limit`` if a page may have so many sessions.

    Raises:
        InvalidInputError: it is not a number from 1 to ``MAX_LIMIT``.
    """
    is_number = isinstance(limit, int) and not isinstance(limit, bool)
    if not is_number or not 1 <= limit <= MAX_LIMIT:  # type: ignore[operator]
        raise InvalidInputError(f"limit must be a number from 1 to {MAX_LIMIT}.")
    return limit  # type: ignore[return-value]


def state_conditions(where: object, owner: Owner, hooks: Hooks) -> list[Document]:
    """The filters for values of a session's own state, one for each key.

    Raises:
        InvalidInputError: ``where`` is not a dict of a session's own state.
    """
    if not isinstance(where, Mapping):
        message = f"where must be a dict, not {type(where).__name__}."
        raise InvalidInputError(message)
    values = {key: _form(key, value) for key, value in where.items()}
    stored = hooks.state_to_store(values, owner)
    return [_condition(key, stored[key]) for key in sorted(stored)]


def _form(key: object, value: object) -> Any:
    if not isinstance(key, str):
        message = f"The keys of where must be strings, not {type(key).__name__}."
        raise InvalidInputError(message)
    if key.startswith(_OF_OTHERS):
        message = (
            f"where has key {quoted(key)}, but sessions are found by their own state"
            " only: app:, user: and temp: keys are not in it."
        )
        raise InvalidInputError(message)
    try:
        return json_form(value, f"where key {quoted(key)}")
    except InvalidInputError as error:
        message = f"The value of where key {quoted(key)} cannot be one: {error}."
        raise InvalidInputError(message) from None


def _condition(key: str, value: Any) -> Document:
    try:
        encoded = encode_value(value)
    except InvalidInputError as error:
        message = f"The value of where key {quoted(key)} cannot be one: {error}."
        raise InvalidInputError(message) from None
    name = escape_key(key)
    path = f"state.{name}"
    is_wrapped = isinstance(encoded, dict) and WRAPPER in encoded
    if isinstance(encoded, dict | list) and not is_wrapped:
        if _depth(encoded) > MAX_DEPTH:
            message = (
                f"The value of where key {quoted(key)} is nested deeper than"
                f" {MAX_DEPTH} levels."
            )
            raise InvalidInputError(message)
        kind = "object" if isinstance(encoded, dict) else "array"
        return {path: {"$type": kind}, "$expr": _is(f"${path}", encoded)}
    # Otherwise None would match a missing key, and a value a list that contains it.
    return {path: {"$eq": encoded, "$exists": True, "$not": {"$type": "array"}}}


def _is(there: Any, value: Any) -> Document:
    """An expression that compares a field with a value, exactly."""
    if isinstance(value, dict):
        fields = [
            _is({"$getField": {"field": {"$literal": name}, "input": there}}, item)
            for name, item in value.items()
        ]
        size = {"$size": {"$objectToArray": there}}
        is_kind: Document = {"$eq": [{"$type": there}, "object"]}
    elif isinstance(value, list):
        fields = [
            _is({"$arrayElemAt": [there, index]}, item)
            for index, item in enumerate(value)
        ]
        size = {"$size": there}
        is_kind = {"$isArray": [there]}
    else:
        return {"$eq": [there, {"$literal": value}]}
    has_size = {"$eq": [size, len(value)]}
    return {"$cond": [is_kind, {"$and": [has_size, *fields]}, False]}


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


def token(place: Place, search: Search) -> str:
    """The token of the page that begins after a place.

    The digest is no secret: it detects mistakes. Whoever computes one can choose where
    a page begins, in a search that they may make anyway.
    """
    content = bson.encode(place._asdict())
    return _text(_digest(content, search) + content)


def place_in(token: object, search: Search) -> Place:
    """The place in a token of the same search.

    Raises:
        InvalidInputError: it is not such a token.
    """
    if not isinstance(token, str):
        kind = type(token).__name__
        raise InvalidInputError(f"page_token must be a string, not {kind}.")
    value = _bytes(token) if len(token) <= _LONGEST else b""
    digest, content = value[:_DIGEST], value[_DIGEST:]
    place = _place(content) if digest == _digest(content, search) else None
    if place is None:
        raise InvalidInputError(_REFUSED)
    return place


def _place(content: bytes) -> Place | None:
    """The place that a token encodes; None if it has other fields or types."""
    try:
        fields = bson.decode(content)
        place = Place(**fields)
        is_exact = bson.encode(place._asdict()) == content
    except (bson.InvalidBSON, TypeError):
        return None
    created, user_id, session_id = place
    is_time = isinstance(created, int | float) and not isinstance(created, bool)
    return (
        place
        if is_exact and is_time and type(user_id) is type(session_id) is str
        else None
    )


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """The inverse of :func:`_text`; empty for a string that it does not return."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        value = base64.b64decode(padded, b"-_", validate=True)
    except ValueError:
        return b""
    return value if _text(value) == text else b""


def _digest(content: bytes, search: Search) -> bytes:
    # BSON begins with its length, so no two pairs give the same bytes.
    return blake2b(content + search.bytes, digest_size=_DIGEST).digest()


class Page(NamedTuple):
    """A page of a search's results."""

    summaries: list[SessionSummary]
    last: Place | None
    """The place of the last session; None if no session follows it."""


async def load_page(
    connection: Connection,
    search: Search,
    after: Place | None,
    limit: int,
    now: float,
    *,
    with_state: bool,
) -> Page:
    """The sessions after a place.

    Raises:
        StorageUnavailableError: MongoDB was unavailable for a minute.
        StorageError: a document is not as this package stores it, or the application's
            hook failed.
    """
    stages = search.stages(after, limit + 1, now, with_state=with_state)
    documents, shared = await persistently(
        lambda: _load(connection, stages, with_state=with_state)
    )
    has_more = len(documents) > limit
    shown = documents[:limit]
    states: dict[SessionKey, dict[str, Any]] = {}
    if with_state:
        mixed = [*shown, *shared]
        decoded = decode_sessions(mixed, now, connection.hooks)
        states = {each.key: each.state for each in decoded}
    summaries = [summary(each, states.get(SessionKey(**each["_id"]))) for each in shown]
    return Page(summaries, Place.of(shown[-1]) if has_more else None)


async def _load(
    connection: Connection, stages: list[Document], *, with_state: bool
) -> tuple[list[Document], list[Document]]:
    """Sessions and their shared state, from one snapshot."""
    at, shared = connection, list[Document]()
    if not at.has_transactions:
        documents = await at.aggregate(at.sessions, stages)
        if with_state and documents:
            for each in _shared_by(documents):
                cursor = each.find(getattr(at, each.collection))
                shared += await cursor.to_list(None)
        return documents, shared
    found = await snapshots.snapshot(at, at.sessions, stages)
    if with_state and found.documents:
        both = queries.union(at, *_shared_by(found.documents))
        read = await snapshots.snapshot_at(at, at.app_states, both, at=found.at)
        shared = read.documents
    return found.documents, shared


def _shared_by(documents: list[Document]) -> list[queries.Wanted]:
    return queries.shared_states(SessionKey(**each["_id"]) for each in documents)
