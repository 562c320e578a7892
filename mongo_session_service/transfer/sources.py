"""Sources: what sessions are read from, and the items that a source yields.

A source yields one stream of items: shared state, and session headers, each followed by
the session's events in order. A ``Problem`` takes the place of what cannot be read.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain, islice
from typing import Any, Final, Protocol, Self, TypeAlias, TypeVar

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import BaseSessionService
from typing_extensions import override

from mongo_session_service.codec.bson_values import UnreadableError
from mongo_session_service.codec.documents import (
    decode_state,
    event_fields,
)
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.events import build_known_event
from mongo_session_service.codec.family_record import FamilyRecord
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.codec.record import (
    FAMILY,
    INITIAL,
    SessionRecord,
    UnknownNeedError,
    initial_beside,
    state_fields,
)
from mongo_session_service.errors import (
    InvalidInputError,
    SourceError,
    StorageError,
    TransferError,
)
from mongo_session_service.model.metadata import StoredDetails
from mongo_session_service.model.records import (
    Document,
    ScopedState,
    SessionKey,
    session_key,
)
from mongo_session_service.model.validation import check_revision, check_string
from mongo_session_service.model.wording import counted, indefinite
from mongo_session_service.service import MongoSessionService, backends_of
from mongo_session_service.sessions import queries
from mongo_session_service.sessions.event_log import (
    LogRange,
    read_log,
)
from mongo_session_service.sessions.families import join
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query

Element = TypeVar("Element")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Selection:
    """Choice of sessions to transfer: all by default."""

    apps: frozenset[str] = frozenset()
    """Names of apps; empty for every app."""
    users: frozenset[str] = frozenset()
    """Ids of users; empty for every user."""
    since: float | None = None
    """Seconds since 1970: only sessions last updated then or later, of this package's
    by when their last event was stored. The state they
    share is included all the same: not every store records when it changed."""
    sessions: frozenset[str] = frozenset()
    """Ids of sessions; empty for every session. If some are named, the state that they
    share with others is left out."""

    def takes_app(self, app_name: str) -> bool:
        return not self.apps or app_name in self.apps

    def takes_state(self, app_name: str, user_id: str | None) -> bool:
        """Whether a user's state is selected, or without a user the app's."""
        is_chosen = user_id is None or not self.users or user_id in self.users
        return is_chosen and self.takes_app(app_name) and not self.sessions

    def takes(self, key: SessionKey, update_time: float) -> bool:
        is_recent = self.since is None or update_time >= self.since
        chosen = zip((self.apps, self.users, self.sessions), key, strict=True)
        return is_recent and all(not ids or each in ids for ids, each in chosen)

    def matching(self, prefix: str = "", session_id: str = "session_id") -> Document:
        """MongoDB's filter for apps, users and sessions, in fields with a prefix."""
        chosen = {
            "app_name": self.apps,
            "user_id": self.users,
            session_id: self.sessions,
        }
        return {
            prefix + name: {"$in": sorted(names)}
            for name, names in chosen.items()
            if names
        }


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class SharedState:
    """The state of an app, or of one of its users; keys without prefix."""

    app_name: str
    user_id: str | None
    state: Mapping[str, Any]

    @property
    def owner(self) -> Owner:
        return Owner.of_shared(self.app_name, self.user_id)

    def __str__(self) -> str:
        if self.user_id is None:
            return f"state of app {self.app_name!r}"
        return f"state of user {self.user_id!r} in app {self.app_name!r}"


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """A session without its events and without shared state."""

    key: SessionKey
    state: Mapping[str, Any]
    update_time: float
    create_time: float | None = None
    """None if the store does not record it."""
    written: float | None = None
    """When its last event was stored; None if the store does not record it."""
    details: StoredDetails | None = None
    """Title, labels and time to live; None if the store does not record them."""
    initial: Mapping[str, Any] | None = None
    """The initial state, without shared state; None if it is not recorded."""
    revision: int | None = None
    """Its last event's; None if the store does not count them."""
    log_begins: int = 0
    """The revision after which its log begins, and that its initial state is of."""
    forked_from: Sequence[Document] = ()
    """The sessions it is a fork of, as they are stored."""

    def has_expired(self, now: float) -> bool:
        expire_time = self.details.expire_time if self.details else None
        return expire_time is not None and expire_time <= now


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that cannot be transferred, and why; its text quotes no content."""

    where: str
    reason: str
    event: Mapping[str, object] | None = field(default=None, repr=False)
    """The fields of an event that is stored, but that this release of ADK cannot read:
    an export has it, and a later release may."""

    def __str__(self) -> str:
        # It becomes a part of sentences, and may be one: the message of an error.
        return f"{self.where}: {self.reason}".rstrip(".")


Item: TypeAlias = SharedState | SessionHeader | FamilyRecord | Event | Problem


class Source(Protocol):
    """Anything that sessions can be read from; an async context manager."""

    @property
    def name(self) -> str:
        """A description for people; never has a password."""

    async def __aenter__(self) -> Self:
        """Open it.

        Raises:
            SourceError: it cannot be reached, or holds something else.
        """

    async def __aexit__(self, *exc: object) -> None:
        """Close it."""

    async def count_events(self, selection: Selection) -> int | None:  # noqa: ARG002
        """Count the events to read; None if that is not known beforehand."""
        return None

    def share_read(self) -> float | None:
        """The fraction that has been read, from 0 to 1, if known without a count."""
        return None

    def read(self, selection: Selection) -> AsyncGenerator[Item]:
        """Yield everything selected as one stream, in bounded memory."""


ALTERED: Final = "it is not as this package stores it; has another tool changed it?"


def session_text(key: SessionKey) -> str:
    return "session {!r} of user {!r} in app {!r}".format(*reversed(key))


_CHUNK_ELEMENTS: Final = 200
"""Elements read per thread call: enough to hide its cost, with little memory."""

_CHUNK_SECONDS: Final = 0.05
"""Seconds after which no more are read, since what takes long to read is large."""


class MalformedError(ValueError):
    """A row or line does not hold what it should hold."""


class BaseSource(Source):
    _exits: AsyncExitStack

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as exits:
            await self._open(exits)
            self._exits = exits.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._exits.aclose()

    async def _open(self, exits: AsyncExitStack) -> None:
        """Open the resource, and note how to close it; by default there is none."""


async def run_in_thread(work: Callable[[], Result]) -> Result:
    """Run a blocking function in a daemon thread, which is abandoned on cancellation.

    It may block for ever on a silent pipe, and an interrupted program would wait for
    the threads of :func:`asyncio.to_thread`.
    """
    future = Future[Result]()
    future.set_running_or_notify_cancel()

    def run_and_set() -> None:
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001  raised by the await below
            future.set_exception(error)

    threading.Thread(target=run_and_set, daemon=True).start()
    return await asyncio.wrap_future(future)


async def iterate_in_threads(elements: Iterable[Element]) -> AsyncGenerator[Element]:
    """Yield the elements of a blocking iterator, read from it in threads."""
    iterator = iter(elements)

    def read_chunk() -> list[Element]:
        some = []
        until = time.monotonic() + _CHUNK_SECONDS
        for each in islice(iterator, _CHUNK_ELEMENTS):
            some.append(each)
            if time.monotonic() > until:
                break
        return some

    while some := await run_in_thread(read_chunk):
        while some:
            yield some.pop(0)


def seconds(value: Any) -> float:
    """A time column as seconds since 1970; a time without zone is UTC."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):
            if math.isfinite(value):
                return float(value)
        raise MalformedError("one of its times is not finite")
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise MalformedError("one of its times cannot be read") from None
    if not isinstance(value, datetime):
        raise MalformedError(f"one of its times is {type_name(value)}")
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


def type_name(value: Any) -> str:
    return "nothing" if value is None else indefinite(type(value).__name__)


def validated_event(fields: dict[str, Any]) -> Event:
    """The event that has these fields, none of which is left out or made up."""
    if not fields.get("id") or "timestamp" not in fields:
        # ADK would make up others at each read.
        raise MalformedError("it has no id, or no timestamp")
    try:
        return build_known_event(fields)
    except (ValueError, TypeError, RecursionError):
        # The original quotes what it could not read.
        raise MalformedError("no event that this release of ADK can read") from None


_SESSIONS_AT_ONCE: Final = 20
"""Sessions read at once."""


class StoreSource(BaseSource):
    """The sessions of a ``MongoSessionService``, which stays open.

    Each session is read up to the revision of its document, so concurrent appends
    neither make it inconsistent nor have to wait.
    """

    def __init__(self, service: MongoSessionService) -> None:
        self._service = service

    @property
    def name(self) -> str:
        return f"sessions in database {self.storage.database.name!r}"

    @override
    async def _open(self, exits: AsyncExitStack) -> None:
        self.storage: Storage = await backends_of(self._service).storage()

    @override
    async def count_events(self, selection: Selection) -> int:
        total = {"$group": {"_id": None, "events": {"$sum": queries.LENGTH}}}
        wanted = _selected_sessions_filter(self.storage, selection)
        (found,) = await self.storage.read(Query("sessions", wanted, then=(total,)))
        return found[0]["events"] if found else 0

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """Shared state, then sessions, each with its events; sorted by id."""
        async for document, app, user in shared_states(self.storage, selection):
            yield self._shared(document, app, user)
        where = _selected_sessions_filter(self.storage, selection)
        sessions = Query("sessions", where, order=1, limit=_SESSIONS_AT_ONCE)
        async for page in self.storage.scan(sessions):
            await add_initial_states(self.storage, page.documents)
            for document in await joined_documents(self.storage, page.documents):
                header = stored_header(document, self.storage.hooks)
                yield header
                if isinstance(header, SessionHeader):
                    async for item in self._events(header):
                        yield item
        if not selection.sessions:
            families = Query("families", selection.matching("_id."))
            async for each in scan_documents(self.storage, families):
                yield _family(each)

    async def _events(self, header: SessionHeader) -> AsyncGenerator[Event | Problem]:
        """The events of a session up to its header's revision, in order."""
        key, revision, storage = header.key, header.revision or 0, self.storage
        found = header.log_begins
        wanted = LogRange(found, revision, created=header.create_time)
        with suppress(SessionNotFoundError):
            async for page in read_log(storage, key, wanted):
                for each in page:
                    found += 1
                    where = f"event {found} of {session_text(key)}"
                    yield _event_or_problem(where, each.document, storage.hooks)
        if found < revision:
            most = counted(revision - header.log_begins, "event")
            events = f"{found - header.log_begins} of {most}"
            reason = f"it has {events}; was it just deleted or trimmed?"
            yield Problem(session_text(key), reason)

    async def refuse_sealed(self, selection: Selection) -> None:
        """Require that selected events are not sealed, or that a hook opens them.

        Without a hook, the server looks through their headers until it finds a sealed
        one, which takes far less time than to read them.
        """
        storage = self.storage
        if storage.hooks.after_load is not None:
            return
        wanted = _selected_sessions_filter(storage, selection)
        async for page in storage.scan(Query("sessions", wanted, fields=("_id",))):
            keys = map(_key, page.documents)
            logs = [queries.all_events(it) for it in keys if isinstance(it, SessionKey)]
            where: Document = {"$or": logs, "hooked": {"$exists": True}}
            query = Query("events", where, fields=("_id",))
            if logs and (sealed := await storage.find_one(query)):
                raise TransferError(
                    f"Nothing was exported: {session_text(EventRecord(sealed).key)} has"
                    " events that before_store has sealed. Give the service after_load,"
                    " or the command --after-load MODULE:FUNCTION: see"
                    " docs/guide/exporting.md#sealed-content."
                )

    async def keys(self, selection: Selection) -> AsyncGenerator[SessionKey | Problem]:
        """The keys of all selected sessions."""
        chosen = Query(
            "sessions",
            _selected_sessions_filter(self.storage, selection),
            fields=("_id",),
        )
        async for each in scan_documents(self.storage, chosen):
            yield _key(each)

    def _shared(
        self, document: Document, app_name: str, user_id: str | None
    ) -> SharedState | Problem:
        owner = Owner.of_shared(app_name, user_id)
        try:
            state = decode_state(state_fields(document), owner, self.storage.hooks)
        except (AttributeError, UnreadableError):  # the first of ids that are no text
            return Problem(str(SharedState(app_name, user_id, {})), ALTERED)
        return SharedState(app_name, user_id, state)


def _event_or_problem(where: str, document: Document, hooks: Hooks) -> Event | Problem:
    fields: Any = None
    try:
        (fields,) = event_fields([document], hooks)
        return validated_event(fields)
    except (StorageError, MalformedError, AttributeError) as error:
        return Problem(where, str(error), fields if isinstance(fields, dict) else None)


def _key(document: Document) -> SessionKey | Problem:
    id_ = document["_id"]
    try:
        return session_key(**id_)
    except (TypeError, InvalidInputError):
        return Problem(f"session document {id_!r}", ALTERED)


def _family(document: Document) -> FamilyRecord | Problem:
    try:
        return FamilyRecord(document)
    except UnreadableError:
        return Problem(f"family document {document['_id']!r}", ALTERED)


async def joined_documents(
    storage: Storage, documents: Sequence[Document]
) -> list[Document]:
    """Add to sessions' documents what those that can be read have of their families."""
    versions = [each for each in documents if FAMILY in each]
    joined = await join(storage, [*SessionRecord.read_all(versions)])
    by_id = {repr(each.key.id): each.document for each in joined}
    return [by_id.get(repr(each["_id"]), each) for each in documents]


def stored_header(document: Document, hooks: Hooks) -> SessionHeader | Problem:
    """Read a stored session."""
    key = _key(document)
    if isinstance(key, Problem):
        return key
    owner = Owner.of_session(key)
    try:
        record = SessionRecord.read(document)
        for each in (record.revision, record.begins, record.event_count):
            check_revision("The log", each)
        return SessionHeader(
            key,
            decode_state(record.state, owner, hooks),
            update_time=seconds(record.updated),
            create_time=seconds(record.created),
            written=record.written and seconds(record.written),
            details=record.details,
            initial=decode_state(record.initial, owner, hooks),
            revision=record.revision,
            log_begins=record.begins,
            forked_from=record.forked_from,
        )
    except UnknownNeedError as error:
        return Problem(session_text(key), str(error))
    except (KeyError, TypeError, ValueError, AttributeError, UnreadableError):
        return Problem(session_text(key), ALTERED)


def _selected_sessions_filter(storage: Storage, selection: Selection) -> Document:
    where = queries.visible_filter(storage.clock.now())
    if selection.since is not None:
        since = {"$gte": selection.since}  # of the caller's clock, or the server's
        where["$or"] = [{"update_time": since}, {"event_time": since}]
    return where | selection.matching("_id.")


async def scan_documents(storage: Storage, query: Query) -> AsyncGenerator[Document]:
    """The documents that match a query, sorted by ``_id``."""
    async for page in storage.scan(query):
        for document in page.documents:
            yield document


async def shared_states(
    storage: Storage, selection: Selection
) -> AsyncGenerator[tuple[Document, Any, Any]]:
    """The documents of selected state, each with its app, and its user or None.

    Both are strings, but where another tool has written.
    """
    if selection.sessions:
        return
    apps = {"_id": {"$in": sorted(selection.apps)}} if selection.apps else {}
    async for each in scan_documents(storage, Query("app_states", apps)):
        yield each, each["_id"], None
    users = Query("user_states", selection.matching("_id."))
    async for each in scan_documents(storage, users):
        id_ = each["_id"] if isinstance(each["_id"], dict) else {}  # another tool's
        yield each, id_.get("app_name"), id_.get("user_id") or ""


async def add_initial_states(storage: Storage, sessions: Iterable[Document]) -> None:
    """Add to sessions' documents the initial states that are stored apart from them."""
    lacking = {
        key: each
        for each in sessions
        if INITIAL not in each and isinstance(key := _key(each), SessionKey)
    }
    if not lacking:
        return
    ids = [key.event_id(0) for key in lacking]
    (found,) = await storage.read(Query("events", {"_id": {"$in": ids}}))
    for apart in found:
        before = EventRecord(apart)
        if INITIAL in apart and isinstance(before.revision, int):
            document = lacking[before.key]
            document[INITIAL] = initial_beside(document, [apart])


@asynccontextmanager
async def source_of_factory(
    factory: Callable[[], Any], apps: Iterable[str]
) -> AsyncIterator[ServiceSource]:
    """The sessions of a service that a function returns; it is closed at the end."""
    name = getattr(factory, "__qualname__", type(factory).__name__)
    try:
        service = factory()
        if inspect.isawaitable(service):
            service = await service
    except Exception as error:
        # Its text may hold the password of what it connects to.
        message = (
            f"{name}() failed with {type(error).__name__}. It is called without"
            " arguments, and must return a BaseSessionService."
        )
        raise SourceError(message) from error
    if not isinstance(service, BaseSessionService):
        message = (
            f"{name}() returned {indefinite(type(service).__name__)}, which is not a"
            " BaseSessionService."
        )
        raise SourceError(message)
    try:
        async with ServiceSource(service, apps) as source:
            yield source
    finally:
        closing = getattr(service, "close", None)
        result = closing() if callable(closing) else None
        if inspect.isawaitable(result):
            await result


class ServiceSource(BaseSource):
    """The sessions of an open service, which stays open.

    The public methods do not return the names of apps, the creation times of sessions,
    or the state of users without a session. A session is loaded as a whole.
    """

    def __init__(self, service: BaseSessionService, apps: Iterable[str]) -> None:
        """Reads nothing yet; ``apps`` are the names of the service's apps."""
        self._service = service
        self._apps = sorted(apps)
        if not self._apps:
            raise SourceError("Name the apps: a session service does not list them.")

    @property
    def name(self) -> str:
        return f"sessions of {type(self._service).__name__}"

    async def read(self, selection: Selection = EVERYTHING) -> AsyncGenerator[Item]:
        """Each session with its events, after shared state that has changed."""
        for app_name in filter(selection.takes_app, self._apps):
            shown: dict[str | None, SharedState] = {}
            for key in await self._keys_of_app(app_name, selection):
                if isinstance(key, Problem):
                    yield key
                    continue
                try:
                    session = await self._service.get_session(**key.id)
                    if session is None:
                        continue
                    state = ScopedState.split(session.state)
                    updated = seconds(session.last_update_time)
                    events = [*session.events]
                except Exception as error:  # noqa: BLE001  foreign services raise any
                    is_ours = isinstance(error, MalformedError)
                    reason = f"its service raised {type(error).__name__}"
                    yield Problem(session_text(key), str(error) if is_ours else reason)
                    continue
                for shared in (
                    SharedState(app_name, None, state.app),
                    SharedState(app_name, key.user_id, state.user),
                ):
                    is_new = shown.get(shared.user_id) != shared
                    if shared.state and is_new and not selection.sessions:
                        shown[shared.user_id] = shared
                        yield shared
                yield SessionHeader(key, state.session, updated)
                for number, event in enumerate(events, 1):
                    where = f"event {number} of {session_text(key)}"
                    is_event = isinstance(event, Event)
                    yield event if is_event else Problem(where, "it is no Event")

    async def _keys_of_app(
        self, app_name: str, selection: Selection
    ) -> list[SessionKey | Problem]:
        """The keys of the selected sessions of an app, sorted, behind bad ones."""
        # Some services list the sessions of one user only.
        users = [{"user_id": each} for each in selection.users] or [{}]
        try:
            lists = [
                (await self._service.list_sessions(app_name=app_name, **user)).sessions
                for user in users
            ]
        except TypeError as error:
            message = (
                f"{type(self._service).__name__} cannot list the sessions of all users:"
                " name the users, with --user or in the Selection."
            )
            raise SourceError(message) from error
        keys: list[SessionKey] = []
        problems: list[Problem] = []
        for each in chain.from_iterable(lists):
            ids = app_name, each.user_id, each.id
            try:
                key = SessionKey(*map(partial(check_string, "An id"), ids))
                if selection.takes(key, seconds(each.last_update_time)):
                    keys.append(key)
            except (InvalidInputError, MalformedError) as error:
                problems.append(Problem(session_text(SessionKey(*ids)), str(error)))
        return [*problems, *sorted(keys)]
