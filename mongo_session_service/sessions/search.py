"""Search for sessions: filters, pages, and the tokens that continue them."""

from __future__ import annotations

import base64
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, NamedTuple

import bson
from bson.errors import BSONError
from bson.timestamp import Timestamp
from google.adk.sessions.state import State

from mongo_session_service.codec import bson_values, documents
from mongo_session_service.codec.family_record import FamilyRecord
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.codec.record import (
    FAMILY,
    HEAD,
    STATE_PATH,
    STATES,
    SessionRecord,
    readable,
)
from mongo_session_service.codec.waiting_calls import WAITING
from mongo_session_service.errors import InvalidInputError, quoted
from mongo_session_service.model.metadata import (
    MAX_TITLE,
    StoredDetails,
    check_short,
)
from mongo_session_service.model.records import SHARD_KEY, Document, SessionKey
from mongo_session_service.model.results import SessionSummary
from mongo_session_service.model.validation import (
    check_choice,
    check_flag,
    check_id,
    wrong_type,
)
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.families import join
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
    of_families: Document = field(default_factory=dict)
    """The filter of title and labels, which a family has for all its sessions."""
    is_shown: bool = False
    """Whether what a family does not show is left out."""
    is_by_family: bool = False
    """Whether conversations with versions are in the order in which they began."""

    @property
    def bytes(self) -> bytes:
        wanted = {"filter": self.filter, "of_families": self.of_families}
        order = {"order_by": self.order_by, "newest_first": self.newest_first}
        return bson.encode(wanted | order | {"is_shown": self.is_shown})

    def place_of(self, document: Document) -> PagePlace:
        id_ = document["_id"]
        name = id_["session_id"] if "session_id" in id_ else id_["family"]
        return PagePlace(document[self.order_by], id_["user_id"], name)

    def page_query(self, after: PagePlace | None, limit: int, now: float) -> Query:
        alone = {**self.of_families, FAMILY: {"$exists": False}}
        wanted = [self.filter, queries.visible_filter(now)]
        if self.is_by_family:
            wanted.append(alone)
        elif self.of_families:
            wanted.append({"$or": [alone, {FAMILY: _TEXT}]})
        return self._page("sessions", "_id.session_id", wanted, after, limit)

    def families_query(self, after: PagePlace | None, limit: int) -> Query:
        names = (*(f"_id.{name}" for name in SHARD_KEY), self.order_by)
        own = {name: self.filter[name] for name in names if name in self.filter}
        wanted = [own | self.of_families]
        return self._page("families", "_id.family", wanted, after, limit)

    def _page(
        self,
        collection: str,
        name: str,
        wanted: list[Document],
        after: PagePlace | None,
        limit: int,
    ) -> Query:
        # A token can continue after these.
        wanted.append({self.order_by: _FINITE, "_id.user_id": _TEXT, name: _TEXT})
        wanted += self._later_filters(after, name)
        names = (self.order_by, "_id.user_id", name)
        order = dict.fromkeys(names, -1 if self.newest_first else 1)
        return Query(collection, {"$and": wanted}, order, limit)

    def damaged_query(self, limit: int, now: float) -> Query:
        """The query for sessions that are on no page: their time is damaged."""
        damaged = {self.order_by: {"$not": {"$gt": -math.inf}}}
        conditions = [self.filter, queries.visible_filter(now), damaged]
        return Query("sessions", {"$and": conditions}, limit=limit)

    def _later_filters(self, after: PagePlace | None, name: str) -> list[Document]:
        if after is None:
            return []
        beyond = "$lt" if self.newest_first else "$gt"
        time, user_id, id_ = after
        later: list[Document] = [
            {self.order_by: {beyond: time}},
            {"_id.user_id": {beyond: user_id}},
            {"_id.user_id": user_id, name: {beyond: id_}},
        ]
        # The first bounds the index scan, the second orders sessions of the same time.
        return [{self.order_by: {f"{beyond}e": time}}, {"$or": later}]


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
    of_families = [{name: {"$eq": value}} for name, value in details.parts()]
    if title_contains is not None:
        part = check_short("title_contains", title_contains, MAX_TITLE)
        of_families.append({"$expr": _has_title_part(part)})
    if waiting is not None:
        if waiting is not True:
            raise InvalidInputError("waiting must be True or None.")
        wanted[WAITING] = {"$exists": True}
    if where is not None and (found := state_conditions(where, owner, hooks)):
        wanted["$and"] = found
    is_shown = check_flag("families", families) or bool(of_families)
    return Search(
        wanted,
        is_newest_first,
        order,
        {"$and": of_families} if of_families else {},
        is_shown,
        is_by_family=is_shown and order == "create_time" and waiting is None,
    )


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
    there = replace(search, filter={**search.filter, search.order_by: given.time})
    both = [there.page_query(None, 2**31 - 1, storage.clock.now())]
    if search.is_by_family:
        both.append(there.families_query(None, 2**31 - 1))
    fields = (search.order_by,)
    found = await storage.read(*(replace(each, fields=fields) for each in both))
    for place in map(search.place_of, chain(*found)):
        if without_ids(place) == given:
            return place
    return given._replace(user_id="\U0010ffff" if search.newest_first else "")


class Page(NamedTuple):
    sessions: list[SessionSummary]
    found: dict[SessionKey, tuple[PagePlace, SessionRecord]]
    """What is stored of these, and where a page goes on after them."""
    next_page_token: str | None = None


class _Chunk(NamedTuple):
    """Sessions that were read together, by the places after which a page goes on."""

    found: dict[PagePlace, SessionRecord]
    last: PagePlace | None
    """The last place that was looked at; None if nothing follows."""
    as_of: Timestamp
    is_whole: bool
    """Whether it ends where it should, and not with a reply of 16 MB."""


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
    now, size = storage.clock.now(), limit + looks_ahead
    unread = STATES[1:] if with_state else STATES
    reading = partial(_read_chunk, storage, search, now=now, unread=unread)
    chunk = await reading(after, size)
    found = chunk.found
    # Many may be left out.
    while chunk.last and chunk.is_whole and len(found) < limit + looks_ahead:
        size = min(2 * size, MAX_LIMIT)
        chunk = await reading(chunk.last, size, as_of=chunk.as_of)
        found |= chunk.found
    following = [*found][limit - 1] if len(found) > limit else chunk.last
    by_key = {each.key: (place, each) for place, each in [*found.items()][:limit]}
    records, states = [each for _, each in by_key.values()], None
    if with_state and records:
        shared = queries.shared_state_queries_by_key([each.key for each in records])
        is_one = len(records) == 1
        states_then = await storage.read(*shared, as_of=chunk.as_of, whole=is_one)
        if not states_then.is_whole:
            half = len(records) // 2
            return await read_page(storage, search, page_token, half, with_state=True)
        shown = documents.show_sessions(records, chain(*states_then), storage.hooks)
        states = {each.key: each.state for each in await in_slices(shown)}
        records = [each for each in records if each.key in states]
    summaries = [*documents.summaries(records, storage.hooks, states)]
    token = following and page_token_after(following, search)
    return Page(summaries, by_key, token)


async def _read_chunk(
    storage: Storage,
    search: Search,
    after: PagePlace | None,
    size: int,
    *,
    now: float,
    unread: tuple[str, ...],
    as_of: Timestamp | None = None,
) -> _Chunk:
    """Read the sessions that follow a place, without what their families leave out."""
    wanted = [replace(search.page_query(after, size, now), without=unread)]
    if search.is_by_family:
        wanted.append(search.families_query(after, size))
    if after is None:
        wanted.append(replace(search.damaged_query(size, now), fields=HEAD))
    page, *others = answer = await storage.read(*wanted, as_of=as_of, whole=size == 1)
    is_whole, as_of = answer.is_whole, answer.as_of
    places, of_families = [*map(search.place_of, page)], search.of_families or None
    if after is None:  # to warn of what is on no page
        deque(SessionRecord.read_all(others.pop()), maxlen=0)
    records = [*SessionRecord.read_all(page)]
    joined = await join(storage, records, as_of, of_families)
    found = {
        search.place_of(each.document): each
        for each in joined
        if not (search.is_shown and each.is_hidden)
    }
    read = readable(FamilyRecord, chain(*others))
    if by_key := {it.key.session_key(it.shown): it for it in read}:
        ids = {"_id": {"$in": [key.id for key in by_key]}}
        where = search.filter | queries.visible_filter(now) | ids
        query = Query("sessions", where, without=unread)
        (shown,) = then = await storage.read(query, as_of=as_of, whole=size == 1)
        is_whole &= then.is_whole
        for each in SessionRecord.read_all(shown):
            family = by_key[each.key]
            found[search.place_of(family.document)] = family.joined(each)
        places += [search.place_of(each.document) for each in by_key.values()]
        places = sorted(places, reverse=search.newest_first)[:size]
        found = {each: found[each] for each in places if each in found}
    if search.is_by_family and not is_whole:
        half = await _read_chunk(
            storage, search, after, size // 2, now=now, unread=unread, as_of=as_of
        )
        return half._replace(is_whole=False)
    last = places[-1] if places and not (is_whole and len(places) < size) else None
    return _Chunk(found, last, as_of, is_whole)


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
        apps = await list_apps(storage)
        whose = {"_id.app_name": {"$in": apps}, "_id.user_id": user_id}
    over: list[Document] = [
        {"$match": whose | queries.expired_filter(storage.clock.now()) | _CREATED},
        {"$group": {"_id": _USER, "sessions": {"$sum": -1}}},
    ]
    states = [{"$match": {"_id.user_id": user_id}}, {"$project": {"_id": _USER}}]
    with_state = {"coll": f"{storage.prefix}user_states", "pipeline": states}
    stages: list[Document] = [
        {"$group": {"_id": _USER, "sessions": {"$sum": _IS_SESSION}}},
        {"$unionWith": {"coll": f"{storage.prefix}sessions", "pipeline": over}},
        *([{"$unionWith": with_state}] if whose else []),
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
    wanted |= queries.visible_filter(storage.clock.now())
    query = Query("sessions", wanted, limit=_SAME_ID, without=STATES)
    (found,) = await storage.read(query)
    records = await join(storage, [*SessionRecord.read_all(found)])
    shown = {
        each.key: (PagePlace(each.created, *each.key[1:]), each)
        for each in records
        if not (families and each.is_hidden)
    }
    known = documents.summaries((each for _, each in shown.values()), storage.hooks)
    return Page([*known], shown)
