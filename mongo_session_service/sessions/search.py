"""Search for sessions: filters, pages, and the tokens that continue them."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, NamedTuple

import bson
from bson.errors import BSONError
from google.adk.sessions.state import State

from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.codec.record import HEAD, STATE_PATH, STATES, SessionRecord
from mongo_session_service.codec.waiting_calls import WAITING
from mongo_session_service.errors import InvalidInputError, quoted
from mongo_session_service.model.metadata import (
    MAX_TITLE,
    StoredDetails,
    check_short,
)
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.model.results import SessionSummary
from mongo_session_service.model.validation import (
    check_choice,
    check_flag,
    check_id,
    wrong_type,
)
from mongo_session_service.sessions import branches, queries
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query
from mongo_session_service.storage.tasks import in_slices

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


_FINITE: Final = {"$gt": -math.inf, "$lt": math.inf}
_TEXT: Final = {"$type": "string"}

ORDERS: Final = ("create_time", "update_time")
"""Fields that sessions can be ordered by."""


class PagePlace(NamedTuple):
    time: float
    user_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Search:
    filter: Document
    newest_first: bool
    order_by: str = "create_time"

    @property
    def bytes(self) -> bytes:
        order = {"order_by": self.order_by, "newest_first": self.newest_first}
        return bson.encode({"filter": self.filter, **order})

    def place_of(self, document: Document) -> PagePlace:
        id_ = document["_id"]
        return PagePlace(document[self.order_by], id_["user_id"], id_["session_id"])

    @property
    def order(self) -> dict[str, int]:
        direction = -1 if self.newest_first else 1
        names = (self.order_by, "_id.user_id", "_id.session_id")
        return dict.fromkeys(names, direction)

    def page_query(self, after: PagePlace | None, limit: int, now: float) -> Query:
        conditions = [
            self.filter,
            queries.visible_filter(now),
            # A token can continue after these.
            {self.order_by: _FINITE, "_id.user_id": _TEXT, "_id.session_id": _TEXT},
            *self._later_filters(after),
        ]
        return Query("sessions", {"$and": conditions}, self.order, limit)

    def damaged_query(self, limit: int, now: float) -> Query:
        """The query for sessions that are on no page: their time is damaged."""
        damaged = {self.order_by: {"$not": {"$gt": -math.inf}}}
        conditions = [self.filter, queries.visible_filter(now), damaged]
        return Query("sessions", {"$and": conditions}, limit=limit)

    def _later_filters(self, after: PagePlace | None) -> list[Document]:
        if after is None:
            return []
        beyond = "$lt" if self.newest_first else "$gt"
        time, user_id, session_id = after
        of_user = {"_id.user_id": user_id, "_id.session_id": {beyond: session_id}}
        # The first bounds the index scan, the second orders sessions of the same time.
        return [
            {self.order_by: {f"{beyond}e": time}},
            {
                "$or": [
                    {self.order_by: {beyond: time}},
                    {"_id.user_id": {beyond: user_id}},
                    of_user,
                ]
            },
        ]


def new_search(
    app_name: object,
    user_id: object,
    details: StoredDetails,
    where: object,
    *,
    newest_first: object,
    hooks: Hooks,
    title_contains: object = None,
    order_by: object = "create_time",
    waiting: object = None,
    families: object = False,
) -> Search:
    is_newest_first = check_flag("newest_first", newest_first)
    order = check_choice("order_by", order_by, ORDERS)
    if order != "create_time" and user_id is None:
        message = f"Ordering by {order} has no index: name a user_id as well."
        raise InvalidInputError(message)
    wanted: Document = {"_id.app_name": check_id("app_name", app_name)}
    owner = Owner(wanted["_id.app_name"])
    if user_id is not None:
        wanted["_id.user_id"] = check_id("user_id", user_id)
        owner = Owner(owner.app_name, wanted["_id.user_id"])
    if title_contains is not None:
        part = check_short("title_contains", title_contains, MAX_TITLE)
        wanted["$expr"] = _has_title_part(part)
    if waiting is not None:
        if waiting is not True:
            raise InvalidInputError("waiting must be True or None.")
        wanted[WAITING] = {"$exists": True}
    if check_flag("families", families):
        wanted |= branches.SHOWN
    conditions = [{name: {"$eq": value}} for name, value in details.parts()]
    if where is not None:
        conditions += state_conditions(where, owner, hooks)
    return Search({"$and": [wanted, *conditions]}, is_newest_first, order)


def _has_title_part(part: str) -> Document:
    """Match a substring of titles, ignoring the case of ASCII letters.

    No regular expression, which a caller could make as costly as they like. MongoDB's
    ``$toLower`` lowers ASCII only, and fails on what another tool may have stored.
    """
    lowered = part.encode().lower().decode()
    place = {"$indexOfCP": [{"$toLower": "$title"}, {"$literal": lowered}]}
    is_text: Document = {"$eq": [{"$type": "$title"}, "string"]}
    return {"$cond": [is_text, {"$gte": [place, 0]}, False]}


def check_limit(limit: object, name: str = "limit") -> int:
    is_number = isinstance(limit, int) and not isinstance(limit, bool)
    if not is_number or not 1 <= limit <= MAX_LIMIT:  # type: ignore[operator]
        raise InvalidInputError(f"{name} must be a number from 1 to {MAX_LIMIT}.")
    return limit  # type: ignore[return-value]


def state_conditions(where: object, owner: Owner, hooks: Hooks) -> list[Document]:
    """The filters for values of a session's own state, one for each key."""
    if not isinstance(where, Mapping):
        raise wrong_type("where", "a dict", where)
    keys = sorted(map(_check_state_key, where))
    return [_state_condition(key, where[key], owner, hooks) for key in keys]


def _check_state_key(key: object) -> str:
    if not isinstance(key, str):
        raise wrong_type("The keys of where", "strings", key)
    if key.startswith(_OF_OTHERS):
        message = (
            f"where has key {quoted(key)}, but sessions are found by their own state"
            " only: app:, user: and temp: keys are not in it."
        )
        raise InvalidInputError(message)
    return key


def _state_condition(key: str, value: Any, owner: Owner, hooks: Hooks) -> Document:
    if not isinstance(value, str | int | float | None):
        message = (
            f"The value of where key {quoted(key)} must be a string, a number, a bool"
            f" or None, not {type(value).__name__}."
        )
        raise InvalidInputError(message)
    try:
        form = bson_values.json_form(value, f"where key {quoted(key)}")
        stored = hooks.state_to_store({key: form}, owner)[key]
        encoded = bson_values.encode_value(stored)
    except InvalidInputError as error:
        message = (
            f"The value of where key {quoted(key)} cannot be searched for: {error}."
        )
        raise InvalidInputError(message) from None
    # Otherwise None would match a missing key, and a value a list that contains it.
    wanted = {"$eq": encoded, "$exists": True, "$not": {"$type": "array"}}
    return {STATE_PATH + bson_values.escape_key(key): wanted}


def page_token_after(place: PagePlace, search: Search) -> str:
    """Make the token of the page that begins after a place.

    The digest is no secret: it detects mistakes. A caller who computes one can choose
    where a page begins, in a search that they may make anyway.
    """
    content = bson.encode(dict(zip("tus", place, strict=True)))
    # BSON begins with its length, so no two pairs give the same bytes.
    digest = blake2b(content + search.bytes, digest_size=_DIGEST).digest()
    return base64.urlsafe_b64encode(digest + content).rstrip(b"=").decode()


def place_in_token(page_token: object, search: Search) -> PagePlace:
    """Decode a token of the same search; any other is refused."""
    if not isinstance(page_token, str):
        kind = type(page_token).__name__
        raise InvalidInputError(f"page_token must be a string, not {kind}.")
    place = _decode_token(page_token) if len(page_token) <= _LONGEST else None
    if place is None or page_token != page_token_after(place, search):
        raise InvalidInputError(_REFUSED)
    return place


def _decode_token(text: str) -> PagePlace | None:
    """Decode a token; None if it has other fields or types."""
    try:
        content = base64.urlsafe_b64decode(text + "==")[_DIGEST:]
        place = PagePlace(*bson.decode(content).values())
    except (ValueError, TypeError, BSONError):
        return None
    is_time = isinstance(place[0], int | float) and not isinstance(place[0], bool)
    return place if is_time and {*map(type, place[1:])} == {str} else None


def without_ids(place: PagePlace) -> PagePlace:
    """A place that names nobody, for who may not see all that a search finds."""
    digest = blake2b(bson.encode(place._asdict())).digest()
    return place._replace(user_id=str(int.from_bytes(digest)), session_id="")


async def find_place(storage: Storage, page_token: str, search: Search) -> PagePlace:
    """Find the place of a token without ids.

    If its session is gone, the page begins with those of the same time.
    """
    given = place_in_token(page_token, search)
    conditions = [search.filter, {search.order_by: given.time}]
    there = replace(search, filter={"$and": conditions})
    query = there.page_query(None, 2**31 - 1, storage.clock.now())
    (found,) = await storage.read(replace(query, fields=(search.order_by,)))
    for place in map(search.place_of, found):
        if without_ids(place) == given:
            return place
    first = "\U0010ffff" if search.newest_first else ""
    return PagePlace(given.time, first, first)


class Page(NamedTuple):
    sessions: list[SessionSummary]
    records: dict[SessionKey, SessionRecord]
    """What is stored of these."""
    next_page_token: str | None = None


async def read_page(
    storage: Storage,
    search: Search,
    page_token: object,
    limit: int,
    *,
    with_state: bool = False,
    looks_ahead: bool = True,
) -> Page:
    """Read the first page, or that of a token, without what cannot be read.

    It is shorter if its sessions, or the states that they share, fill a reply of 16 MB.
    Unless it looks ahead, the next page may be empty.
    """
    after = None if page_token is None else place_in_token(page_token, search)
    now, most = storage.clock.now(), limit + looks_ahead
    unread = STATES[1:] if with_state else STATES
    wanted = [replace(search.page_query(after, most, now), without=unread)]
    if after is None:
        wanted.append(replace(search.damaged_query(limit, now), fields=HEAD))
    found, *damaged = answer = await storage.read(*wanted, whole=False)
    page, has_more = found[:limit], len(found) == most or not answer.is_whole
    records = [*SessionRecord.read_all(chain(page, *damaged))]  # it warns
    states = None
    if with_state and records:
        shared = queries.shared_state_queries_by_key([each.key for each in records])
        is_one = len(page) == 1
        states_then = await storage.read(*shared, as_of=answer.as_of, whole=is_one)
        if not states_then.is_whole:
            half = len(page) // 2
            return await read_page(storage, search, page_token, half, with_state=True)
        shown = documents.show_sessions(records, chain(*states_then), storage.hooks)
        states = {each.key: each.state for each in await in_slices(shown)}
        records = [each for each in records if each.key in states]
    sizes = await branches.count_families(storage, records, answer.as_of)
    summaries = [*documents.summaries(records, storage.hooks, states, sizes)]
    following = None
    if has_more and page:
        following = page_token_after(search.place_of(page[-1]), search)
    return Page(summaries, {each.key: each for each in records}, following)


_SAME_ID: Final = 50
"""Sessions of one id that are found."""

_USER: Final = {"app": "$_id.app_name", "user": "$_id.user_id"}
_BY_USER: Final = ("_id.app_name", "_id.user_id", "create_time", "_id.session_id")
_CREATED: Final = {"create_time": {"$ne": None}}
_IS_SESSION: Final = {"$cond": [{"$gt": ["$create_time", None]}, 1, 0]}
"""1, or 0 for a tombstone or a reservation: by an index alone."""
_TOTALS: Final = {"users": {"$sum": 1}, "sessions": {"$sum": "$sessions"}}


class AppCount(NamedTuple):
    app_name: str
    users: int
    """Users with sessions."""
    sessions: int
    """Sessions, those being imported included."""


async def list_apps(storage: Storage) -> list[str]:
    """List the apps that have sessions, by name.

    The server steps from one app to the next in an index, whatever they hold.
    """
    query = Query("sessions", {}, then=({"$group": {"_id": "$_id.app_name"}},))
    return sorted(each["_id"] for each in await _find_apps(storage, query))


async def count_by_app(storage: Storage, user_id: str | None) -> list[AppCount]:
    """Count the sessions that have not expired, by app; apps by name.

    The server reads an index as a whole, and no session. Of one user it reads a part of
    it, and all user states: apps that have only state of theirs are named as well.
    """
    whose: Document = {}
    if user_id is not None:  # with the apps' names, an index leads to the sessions
        whose = {
            "_id.app_name": {"$in": await list_apps(storage)},
            "_id.user_id": user_id,
        }
    over: list[Document] = [
        {"$match": whose | queries.expired_filter(storage.clock.now()) | _CREATED},
        {"$group": {"_id": _USER, "sessions": {"$sum": -1}}},
    ]
    states = [{"$match": {"_id.user_id": user_id}}, {"$project": {"_id": _USER}}]
    with_state = {
        "$unionWith": {"coll": f"{storage.prefix}user_states", "pipeline": states}
    }
    stages: list[Document] = [
        {"$group": {"_id": _USER, "sessions": {"$sum": _IS_SESSION}}},
        {"$unionWith": {"coll": f"{storage.prefix}sessions", "pipeline": over}},
        *([with_state] if whose else []),
        {"$group": {"_id": "$_id", "sessions": {"$sum": "$sessions"}}},
        {"$match": {"sessions": {"$gte": 0 if whose else 1}}},
        {"$group": {"_id": "$_id.app", **_TOTALS}},
        {"$sort": {"_id": 1}},
    ]
    # An order that an index has, so that it is read instead of the sessions.
    order = dict.fromkeys(_BY_USER, 1)
    query = Query("sessions", whose, order, then=tuple(stages))
    found = await _find_apps(storage, query)
    return [AppCount(each["_id"], each["users"], each["sessions"]) for each in found]


async def _find_apps(storage: Storage, query: Query) -> list[Document]:
    (found,) = await storage.read(query)
    # Another tool may have stored what is no name.
    return [each for each in found if isinstance(each["_id"], str)]


async def find_by_id(
    storage: Storage,
    app_name: str,
    user_id: str | None,
    session_id: str,
    *,
    families: bool = False,
) -> Page:
    """Find an app's sessions with an id, 50 at most; of any user if none is given.

    With ``families``, those that their family does not show are left out.

    Without a user the server looks at each of the app's keys in an index, and at no
    other document: about a second for a million sessions.
    """
    wanted: Document = {"_id.app_name": app_name, "_id.session_id": session_id}
    if user_id is not None:
        wanted["_id.user_id"] = user_id
    if families:
        wanted |= branches.SHOWN
    wanted |= queries.visible_filter(storage.clock.now())
    query = Query("sessions", wanted, limit=_SAME_ID, without=STATES)
    (found,) = await storage.read(query)
    records = {each.key: each for each in SessionRecord.read_all(found)}
    sizes = await branches.count_families(storage, records.values())
    known = documents.summaries(records.values(), storage.hooks, families=sizes)
    return Page([*known], records)
