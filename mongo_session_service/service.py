"""The session service: every public method of ``MongoSessionService``."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import partial
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack, get_args

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform import time, uuid
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.session import Session
from typing_extensions import override

from mongo_session_service._public import public
from mongo_session_service.backend import Backend, Backends, Stage
from mongo_session_service.changes.routing import Scope
from mongo_session_service.codec import documents
from mongo_session_service.codec.adk_session import (
    listed_session,
    mark,
    show_missed_events,
    to_session,
)
from mongo_session_service.codec.event_record import EventRecord
from mongo_session_service.codec.hooks import Hook, Hooks
from mongo_session_service.consumers.checkpoint import (
    ConsumerSettings,
    ConsumerStatus,
    OnHistoryLost,
    Start,
    load_statuses,
)
from mongo_session_service.consumers.consumer import Consumer
from mongo_session_service.errors import (
    ConfigurationError,
    InvalidInputError,
    quoted,
    service_closed_error,
    session_not_found_error,
)
from mongo_session_service.feed.feed import Feeds
from mongo_session_service.feed.place import Place
from mongo_session_service.feed.stats import FeedStats, observe
from mongo_session_service.feed.subscription import SessionSubscription, Subscription
from mongo_session_service.model import metadata, validation
from mongo_session_service.model.limits import DEFAULT, Limits
from mongo_session_service.model.metadata import (
    NOT_GIVEN,
    NotGiven,
    StoredDetails,
)
from mongo_session_service.model.records import (
    ScopedState,
    SessionKey,
    lookup_key,
    session_key,
)
from mongo_session_service.model.results import (
    Branch,
    Erased,
    Pruned,
    SessionPage,
    SessionSummary,
    TurnInfo,
    TurnPhase,
    UserEvent,
)
from mongo_session_service.model.validation import check_id, lookup_id
from mongo_session_service.sessions import (
    branches,
    deletion,
    event_log,
    redaction,
    search,
    trim,
)
from mongo_session_service.sessions.append import Appended, OnConflict
from mongo_session_service.sessions.deletion import erase_owner
from mongo_session_service.sessions.details import update_details
from mongo_session_service.sessions.fork import Fork, copy_session, new_branch
from mongo_session_service.sessions.queries import NO_EVENTS
from mongo_session_service.storage.clients import ConnectionSettings
from mongo_session_service.storage.failures import (
    reporting_stored_unread,
)
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.lease import LeaseRenewer
from mongo_session_service.storage.tasks import (
    ReraisedCancellation,
    await_in,
    in_slices,
    running_loop,
    uninterrupted,
)
from mongo_session_service.telemetry import Living, Operation, traced
from mongo_session_service.turns.closing_events import with_reason
from mongo_session_service.turns.recovery import Recovery
from mongo_session_service.turns.running_turns import (
    RunArguments,
    RunningTurn,
    RunningTurns,
)
from mongo_session_service.turns.turn import (
    Turn,
    Turns,
    end_turns_of_erased,
    find_turns,
    is_in_turn_of,
    request_stop,
)
from mongo_session_service.turns.waiting_line import WaitingLine

if TYPE_CHECKING:
    from google.adk.agents.run_config import RunConfig
    from google.adk.runners import Runner

logger = logging.getLogger(__name__)

State = dict[str, Any]


class RegistryArguments(TypedDict, total=False):
    """Arguments that are no user's: of ADK's service registry, and of tests."""

    agents_dir: str
    _limits: Limits


class ListedPage(ListSessionsResponse):
    """A page of ``list_sessions``, as ADK's next design has it."""

    next_page_token: str | None = None


@public
class MongoSessionService(BaseSessionService):
    """Keeps ADK sessions in MongoDB.

    ::

        service = MongoSessionService("mongodb://127.0.0.1:27017/adk?replicaSet=rs0")
        runner = Runner(agent=agent, app_name="my_app", session_service=service)

    Every call may raise ``InvalidInputError`` for invalid arguments, such as ids that
    are empty or longer than 4,096 bytes, ``ConfigurationError``,
    ``SchemaVersionError``, ``StorageError`` and its ``StorageUnavailableError``. A
    write that raises was not done, unless it raises ``UnknownOutcomeError``. The
    documentation has a table of errors.

    ``app_name``, ``user_id`` and ``session_id`` name a session; white space around its
    id is left out. As in ADK's own services, ``get_session``, ``list_sessions``,
    ``get_user_state`` and ``delete_session`` accept any string as an id, and find
    nothing under one that cannot be stored.
    """

    def __init__(
        self,
        uri: str | None = None,
        *,
        client: Any = None,
        database: str | None = None,
        collection_prefix: str = "",
        transactions: bool = True,
        on_conflict: Literal["raise", "rebase"] = "raise",
        before_store: Hook | None = None,
        after_load: Hook | None = None,
        default_ttl: float | timedelta | str | None = None,
        read_cache_bytes: int = 64_000_000,
        **adk_kwargs: Unpack[RegistryArguments],
    ) -> None:
        """Connects to nothing yet.

        Args:
            uri: Where MongoDB is. The service then owns its clients, and works from any
                event loop, thread and process.
            client: A PyMongo ``AsyncMongoClient``, Motor ``AsyncIOMotorClient`` or
                mongomock-motor ``AsyncMongoMockClient`` of the caller's instead of a
                URI. It is never closed here, and only used in one event loop.
            database: The database's name; by default the URI's, or else ``adk``.
            collection_prefix: Put before the name of every collection.
            transactions: False is the only way to run on a server without them; an
                append is then several writes that a crash can tear apart.
            on_conflict: What an append does when storage has moved on: ``raise`` ADK's
                ``StaleSessionError``, or ``rebase``: bring what others have appended
                into the session, and append on top of it.
            before_store: Called as ``before_store(value, subject)`` with each event and
                each value of state that is to be stored; what it returns is stored
                instead. See :class:`Subject` and the documentation.
            after_load: Its inverse, called with what was stored.
            default_ttl: The ``ttl`` of sessions that are created without ``ttl`` and
                ``expire_time``: seconds, a ``timedelta``, or text such as ``"7200s"``.
                Forks, imports and stored sessions keep their own.
            read_cache_bytes: How much memory may hold the events of sessions that were
                read before, so that reading one again builds only what is new. What
                nobody reads for five minutes is dropped. 0 for none.
            **adk_kwargs: ``agents_dir``, which ADK's service registry passes along, is
                ignored. Any other is refused, since it may be misspelt.

        Raises:
            ConfigurationError: an argument is unknown, or they do not fit together.
        """
        limits = adk_kwargs.pop("_limits", DEFAULT)  # tests make them small
        _refuse_unknown(adk_kwargs)
        if on_conflict not in ("raise", "rebase"):
            message = f"on_conflict must be 'raise' or 'rebase', not {on_conflict!r}."
            raise ConfigurationError(message)
        self._on_conflict: OnConflict = on_conflict
        self._default_ttl = _check_default_ttl(default_ttl)
        settings = ConnectionSettings.from_arguments(
            uri,
            client,
            database=database,
            prefix=collection_prefix,
            transactions=transactions,
            hooks=Hooks(before_store, after_load),
            limits=limits,
        )
        self.database_name = settings.database
        """The name of the database that it uses."""
        self._hooks = settings.hooks
        limit = _check_bytes("read_cache_bytes", read_cache_bytes)
        self._backends = Backends(uri, client, settings, limit)
        self._feeds = Feeds(self._backends)
        self._lease_renewer = LeaseRenewer()
        self._turns = Turns(self._backends, self._lease_renewer, self.database_name)
        self._running_turns = RunningTurns(self._backends)
        self._consumers = Living[Consumer]()
        observe(self)

    @traced
    async def setup(self) -> None:
        """Creates collections and indexes, and checks the server.

        The first call that adds a session or an event does so too; call it at start-up
        to fail early. Safe to repeat.

        Raises:
            ConfigurationError: the server is too old, or not a replica set.
            SchemaVersionError: the data was written by a newer release.
        """
        await self._backends.set_up()

    @traced
    async def ping(self) -> float:
        """Returns how many seconds MongoDB's primary took to answer; for health checks.

        Nothing is created. An outage is reported after ``serverSelectionTimeoutMS``,
        30 seconds unless the URI sets another time; ``asyncio.timeout`` shortens it.

        Raises:
            StorageUnavailableError: there is no primary, or it does not answer.
        """
        backend = await self._backends.backend(Stage.OPENED)
        asked = perf_counter()
        await backend.storage.command({"ping": 1})
        return perf_counter() - asked

    async def close(self, *, grace: float = 10.0) -> None:
        """Ends turns, subscriptions and consumers, and closes the clients it opened.

        Appends under way are finished first. A turn that is started meanwhile is
        refused. A later call opens new clients.

        Args:
            grace: Seconds that running turns have to end by themselves. Then they are
                stopped.
        """
        validation.check_seconds("grace", grace)
        async with self._running_turns.stopped(grace):
            reading = [(it.loop, it.end) for it in self._consumers if it.loop]
            await asyncio.gather(*(await_in(*each) for each in reading))
            self._turns.call_lines(WaitingLine.fail_all)
            await self._backends.close()
            await self._lease_renewer.end_thread()

    async def __aenter__(self) -> Self:
        running_loop()
        try:
            await self._backends.backend(Stage.OPENED, stays=True)
            await self.setup()
        except BaseException:  # the body does not run, so nobody would close it
            await uninterrupted(self.close())
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @override
    def __reduce__(self) -> str:
        raise ConfigurationError(
            "A MongoSessionService cannot be pickled. Build one from its URI in each"
            " process."
        )

    @override
    @traced
    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
        title: str | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: float | timedelta | str | None = None,
        expire_time: datetime | str | None = None,
        display_name: str | None = None,
    ) -> Session:
        """Creates a session, and writes the app and user state among its ``state``.

        ADK's REST API passes on the arguments after ``session_id`` from ``options``.

        Args:
            state: The initial state, keys prefixed by scope; ``temp:`` is dropped.
            session_id: The session's id, stripped; generated if blank or None.
            title: What people call it, up to 1,000 characters; by default the display
                name of ADK's web interface, if that is in the state.
            labels: What to find it by: up to 64, of up to 256 characters each.
            ttl: Seconds, a ``timedelta``, or text such as ``"7200s"``, after which it
                is gone, with its events, by the server's clock; each append renews it,
                and a turn does for as long as it is held.
                ``math.inf`` is never, whatever ``default_ttl`` is.
            expire_time: Or when it is gone, whatever is appended until then: a
                ``datetime`` with a time zone, or ISO 8601 text with one.
            display_name: What Vertex AI's service calls the title.

        Raises:
            AlreadyExistsError: the session exists. No state was written.
            InvalidInputError: something of it cannot be stored.
            DocumentTooLargeError: the state does not fit into a document.
            UnknownOutcomeError: the session, whole, may have been stored or not.
        """
        key = session_key(app_name, user_id, _given_or_new(session_id))
        now = time.get_time()
        if ttl is None and expire_time is None:
            ttl = self._default_ttl
        named = metadata.resolve_title(title, display_name)
        details = StoredDetails.given(
            self._backends.clock.now(),
            is_new=True,
            title=named,
            labels=labels,
            ttl=ttl,
            expire_time=expire_time,
        )
        initial = {} if state is None else state
        new = documents.encode_new_session(key, initial, now, self._hooks, details)
        backend = await self._backends.backend(Stage.SET_UP)
        reading = backend.reads.read_shared_state(key)
        now = backend.storage.clock.now()
        new = replace(new, details=new.details.with_renewed_expiry(now))
        await backend.writer.create(new)
        backend.sweep.expect(new.details.expire_time)
        with reporting_stored_unread():
            shared = await asyncio.shield(reading)
            return to_session(documents.decode_new_session(new, shared, self._hooks))

    @override
    @traced
    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Returns a session as it is at one point in time, or None.

        Args:
            config: Which events to load: at most the ``num_recent_events`` latest, and
                of these the ones at or after ``after_timestamp``. All by default.
        """
        key = lookup_key(app_name, user_id, session_id)
        config = validation.check_config(config)
        if key is None:
            return None
        backend = await self._backends.backend()
        unborn = self._turns.unborn_branch(key)
        stored = await backend.reads.read_session(key, config, unborn=unborn)
        return to_session(stored) if stored else None

    @override
    @traced
    async def list_sessions(
        self,
        *,
        app_name: str,
        user_id: str | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> ListSessionsResponse:
        """Lists an app's or a user's sessions with their state, without events.

        The least recently updated comes first, ties by user and then session id. One
        that another tool has damaged is left out, with a warning that names it.

        Args:
            user_id: Only this user's.
            page_size: How many to return at most, up to 1,000; by default all. Pages
                are in the order of creation, the newest first, and the response has a
                ``next_page_token``, which is None on the last page.
            page_token: The ``next_page_token`` of the page before.

        Raises:
            InvalidInputError: the token is not one of this list.
        """
        if page_size is not None:
            search.check_limit(page_size, "page_size")
        elif page_token is not None:
            raise InvalidInputError("A page_token needs a page_size.")
        app = lookup_id("app_name", app_name)
        user = None if user_id is None else lookup_id("user_id", user_id)
        if app is None or (user is None and user_id is not None):
            return ListSessionsResponse()
        if page_size is not None:
            page = await self.find_sessions(
                app_name=app, user_id=user, limit=page_size, page_token=page_token
            )
            return ListedPage.model_construct(
                sessions=[*map(listed_session, page.sessions)],
                next_page_token=page.next_page_token,
            )
        backend = await self._backends.backend()
        stored = await backend.reads.list_sessions(app, user)
        sessions = await in_slices(map(to_session, stored))
        # Validating what was built here would take 0.1 ms for 500.
        return ListSessionsResponse.model_construct(sessions=sessions)

    @override
    @traced
    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns a user's state, keys without ``user:``; empty if there is none."""
        app, user = lookup_id("app_name", app_name), lookup_id("user_id", user_id)
        if app is None or user is None:
            return {}
        backend = await self._backends.backend()
        return await backend.reads.read_user_state(app, user)

    @override
    @traced
    async def append_event(self, session: Session, event: Event) -> Event:
        """Stores an event and its effect on state, as one transaction.

        When this returns, both are committed on a majority of the replica set, and
        ``session`` shows them. When it raises, ``session`` and ``event`` are as they
        were. An event that was stored before is not stored again; with
        ``on_conflict="raise"``, a ``session`` that has missed other events then stays
        as it is. A partial event is returned as it is. If the caller is cancelled, the
        transaction is finished first, so ``session`` shows whether the event was
        stored.

        Raises:
            StaleSessionError: the stored session has events ``session`` does not know;
                if it was to be rebased, they leave no place for this one, as a function
                call does that has no response yet.
            SessionNotFoundError: the session is not stored (any more).
            AlreadyExistsError: another event of the session has the same id.
            InvalidInputError: a value of the event cannot be stored.
            DocumentTooLargeError: the event or the session's state got too large.
            LeaseLostError: it is in the body of a :meth:`turn` that was taken over.
            UnknownOutcomeError: it may have been stored or not. Append the same event
                again: it is recognised if it was.
        """
        validation.check_event(event)
        if event.partial:
            return event
        validation.check_session(session)
        started = monotonic()
        key = session_key(session.app_name, session.user_id, session.id)
        backend = await self._backends.backend(Stage.SET_UP)
        await self._append(
            backend, key, session, event, started, on_conflict=self._on_conflict
        )
        return event

    @traced
    async def append(
        self, *, app_name: str, user_id: str, session_id: str, event: Event
    ) -> Event:
        """Stores an event, and its effect on state, without a ``Session`` in hand.

        For webhooks and jobs. The event follows whatever is stored, as if the session
        had been loaded just before by a service with ``on_conflict="rebase"``; but only
        its last event is read. An event that was stored before is not stored again:
        give it an id and a timestamp of your own to repeat it safely. If the caller is
        cancelled, the transaction is finished first.

        Args:
            event: The event; it may not be partial, nor a rewind.

        Returns:
            The event, with the actions that were stored.

        Raises:
            SessionNotFoundError: the session is not stored.
            StaleSessionError: the last event is another invocation's function call, of
                the last ten seconds, whose response has to follow; or others appended
                first a hundred times. Try again.
            AlreadyExistsError: another event of the session has the same id.
            InvalidInputError: the event is partial or a rewind, or a value of it cannot
                be stored.
            DocumentTooLargeError: the event or the session's state got too large.
            LeaseLostError: it is in the body of a :meth:`turn` that was taken over.
            UnknownOutcomeError: it may have been stored or not. Append the same event
                again: it is recognised if it was.
        """
        validation.check_whole_event(event)
        started = monotonic()
        key = session_key(app_name, user_id, session_id)
        backend = await self._backends.backend(Stage.SET_UP)
        unborn = self._turns.unborn_branch(key)
        session = to_session(await backend.reads.read_end(key, unborn))
        await self._append(backend, key, session, event, started, on_conflict="rebase")
        return event

    async def _append(
        self,
        backend: Backend,
        key: SessionKey,
        session: Session,
        event: Event,
        started: float,
        *,
        on_conflict: OnConflict,
    ) -> None:
        """Store an event that follows what a session shows, and show it there."""
        turn = self._turns.held_turn(key)
        stored = event
        if event.actions.rewind_before_invocation_id:
            stored = await event_log.complete_rewind(backend.storage, key, event)
        if turn is not None:
            stored = with_reason(stored, turn.info.reason)
        fence = None if turn is None else turn.fence
        with ReraisedCancellation():  # it is raised once the event is shown
            appended = await backend.appender.append(
                key, session, stored, fence, started, on_conflict=on_conflict
            )
            await self._show(session, event, stored, appended)
            if turn is not None:
                turn.extend(started)

    async def _show(
        self, session: Session, event: Event, stored: Event, appended: Appended
    ) -> None:
        """Show a stored event in a session, with what others have stored around it."""
        if appended.marker is None:
            return
        if appended.missed is not None:
            show_missed_events(session, appended.missed)
        mark(session, appended.marker)
        if event is not stored:  # it was completed: the actions are those of a rewind
            event.actions = stored.actions
        session.last_update_time = event.timestamp
        await super().append_event(session, event)
        if appended.later is not None:
            show_missed_events(session, appended.later)
            mark(session, appended.later.marker)
            session.last_update_time = appended.later.record.updated

    def turn(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        wait: float | None = 30.0,
        config: GetSessionConfig | None = None,
    ) -> AbstractAsyncContextManager[Session]:
        """Waits for the turn of a session, and holds it for a block.

        ::

            async with service.turn(
                app_name="my_app", user_id="ada", session_id="monday"
            ) as session:
                ...  # nobody else is in such a block of this session

        One caller holds it at a time, of all tasks, processes and machines; the others
        follow in the order in which they came. It is given the ``Session`` as the one
        before has left it. If its process dies, the next one follows within ten
        seconds. Appends outside of such blocks are not held up, and no loaded
        ``Session`` becomes stale.

        An append within the block, through whichever ``Session``, raises
        ``LeaseLostError`` once another caller has taken the turn over, which happens if
        the process was paused, or cut off from MongoDB, for some seconds.

        Args:
            wait: The longest wait in seconds; 0 to try once, None for no limit.
            config: Which events the ``Session`` has, as in :meth:`get_session`.

        Raises:
            TimeoutError: when entering: it was not free in time; it names who has it.
            SessionNotFoundError: when entering: the session is not stored, or is
                deleted meanwhile.
            MongoSessionServiceError: when entering: the caller is in such a block of
                the same session, or the service was closed meanwhile.
        """
        config = validation.check_config(config)
        return self._new_turn(app_name, user_id, session_id, wait, config)

    def _new_turn(
        self,
        app_name: str,
        user_id: str,
        session_id: str,
        wait: float | None,
        config: GetSessionConfig | None = NO_EVENTS,
    ) -> Turn:
        key = session_key(app_name, user_id, session_id)
        validation.check_wait("wait", wait)
        return Turn(self._turns, key, wait, config)

    def run_turn(
        self,
        runner: Runner,
        *,
        user_id: str,
        session_id: str,
        wait: float | None = 30.0,
        **run_arguments: Unpack[RunArguments],
    ) -> AsyncGenerator[Event, None]:
        """Runs an ADK ``Runner`` in a :meth:`turn` of the session.

        ::

            async for event in service.run_turn(
                runner, user_id="ada", session_id="monday", new_message=message
            ):
                ...

        It yields what ``runner.run_async`` yields, and raises what that and
        :meth:`turn` raise. The runner works in a task of its own, so the caller's code
        between two events is not in the turn.

        Args:
            runner: The runner, built with this service.
            wait: The longest wait for the turn, as in :meth:`turn`.
            **run_arguments: Passed to ``run_async``: ``new_message``, ``run_config``
                and others.
        """
        turn = self._new_turn(_app_of(runner), user_id, session_id, wait)
        return self._paced_events(
            RunningTurn(turn, runner, run_arguments, is_paced=True)
        )

    async def _paced_events(self, running: RunningTurn) -> AsyncGenerator[Event, None]:
        """Run a turn at the pace of its one reader, who ends it by leaving."""
        await self._running_turns.start(running)
        try:
            async for event in running:
                yield event
        finally:
            await uninterrupted(running.stop())

    async def start_turn(
        self,
        runner: Runner,
        *,
        user_id: str,
        session_id: str,
        wait: float | None = 30.0,
        interrupt: bool = False,
        keep_partial_answer: bool = True,
        instead_of: str | None = None,
        **run_arguments: Unpack[RunArguments],
    ) -> RunningTurn:
        """Starts an ADK ``Runner`` in a :meth:`turn` of the session, and returns.

        ::

            running = await service.start_turn(
                runner, user_id="ada", session_id="monday", new_message=message
            )
            async for event in running:
                ...

        The turn goes on in a task of the service, whether anybody reads it or not. Any
        number of readers may come, and leave. If the process dies, the turn is
        abandoned: see :meth:`recover_turns`. If the session is deleted or expires, it
        ends within two seconds, and its readers raise ``SessionNotFoundError``.

        Args:
            runner: The runner, built with this service.
            wait: The longest wait for the turn, as in :meth:`turn`.
            interrupt: Whether to stop the turn that runs, instead of waiting for its
                end. Of several who wait so, the latest has the next turn.
            keep_partial_answer: Whether the text that was said when the turn is
                stopped, or fails, is stored as an event with ``interrupted=True``.
            instead_of: An invocation of the session whose message is edited, by
                ``new_message``, or without one is asked again. The session stays as it
                is: the turn runs in a *branch*, a new session with the events before
                that invocation and the state after them, which its family shows from
                then on. See :attr:`RunningTurn.session_id` and :meth:`find_branches`.
                ``interrupt`` then stops the turn that runs in the session; without it,
                that goes on there. The branch is stored with the message, and this
                returns then; what cannot begin leaves nothing.
            **run_arguments: Passed to ``run_async``: ``new_message``, ``run_config``
                and others.

        Raises:
            TimeoutError: the turn was not free in time; it names who has it. Or
                ``interrupt`` is set, and a later caller has interrupted this one, whose
                message is not stored.
            SessionNotFoundError: the session is not stored.
            InvalidInputError: it has no invocation ``instead_of``, or not the whole; or
                that began with no message that could be asked again.
            MongoSessionServiceError: the caller is in a turn of the session, or the
                service is closed meanwhile.
        """
        validation.check_flag("keep_partial_answer", keep_partial_answer)
        turn = self._new_turn(_app_of(runner), user_id, session_id, wait)
        turn.interrupts = validation.check_flag("interrupt", interrupt)
        fork: Fork | None = None
        if instead_of is not None:
            fork, run_arguments = await self._edit(turn.key, instead_of, run_arguments)
            if turn.interrupts:
                await self._turns.stop_running(fork.storage, turn.key, wait)
            turn = Turn(self._turns, fork.target, wait=None)
            async with fork.removed_on_failure():
                turn.unborn = await fork.copy()
        running = RunningTurn(
            turn, runner, run_arguments, keeps_partial_answer=keep_partial_answer
        )
        try:
            await self._running_turns.start(running)
        finally:
            if fork is not None and turn.unborn is not None:
                await uninterrupted(fork.remove_copy())
        return running

    async def _edit(
        self, key: SessionKey, invocation_id: object, run_arguments: RunArguments
    ) -> tuple[Fork, RunArguments]:
        """Return the branch that is to be made, and how its turn is to be run."""
        message = run_arguments.get("new_message")
        if message is not None and not message.parts:
            raise InvalidInputError(
                "new_message has no parts. Leave it out to ask again."
            )
        if run_arguments.get("invocation_id") is not None:
            raise InvalidInputError("Give instead_of or an invocation_id, not both.")
        before = validation.check_string("instead_of", invocation_id)
        backend = await self._backends.backend()
        new = key._replace(session_id=uuid.new_uuid())
        fork, asked = await new_branch(
            backend.storage, key, new, before, asks_again=message is None
        )
        if message is None:
            delta = ScopedState.split(asked.actions.state_delta).session
            again: RunArguments = {"state_delta": delta or None}
            run_arguments = again | run_arguments | {"new_message": asked.content}
        return fork, run_arguments

    @traced
    async def find_branches(
        self, *, app_name: str, user_id: str, session_id: str
    ) -> list[Branch]:
        """Returns the family of a session: all versions of a conversation.

        The oldest comes first. A session none of whose messages was edited is returned
        alone.

        Raises:
            SessionNotFoundError: the session is not stored.
        """
        key = session_key(app_name, user_id, session_id)
        backend = await self._backends.backend()
        return await branches.find_branches(backend.storage, key)

    @traced
    async def show_branch(
        self, *, app_name: str, user_id: str, session_id: str
    ) -> None:
        """Has the family of a session show it, with the title and labels of the family.

        Subscribers receive ``updated`` for it, and for the one that is hidden now.
        Nothing happens if it is shown already.

        Raises:
            SessionNotFoundError: the session is not stored, or has expired.
        """
        key = session_key(app_name, user_id, session_id)
        backend = await self._backends.backend()
        await branches.show_branch(backend.storage, key)

    @traced
    async def stop_turn(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        reason: str | None = None,
    ) -> bool:
        """Stops the turn of a session that :meth:`start_turn` or ``run_turn`` runs.

        Whichever process runs it notices within a second, ends the agent, and answers
        its open calls with an error, as ADK does when a client aborts. A plain
        :meth:`turn` has nothing to stop, and ends when its block does.

        Args:
            reason: Why, for those who look at the turn: up to 1,000 characters.

        Returns:
            False if no turn was running. One whose session is gone is known only where
            it runs, and ends by itself.
        """
        key = session_key(app_name, user_id, session_id)
        if reason is not None:
            reason = validation.check_string("reason", reason)[:1000]
        backend = await self._backends.backend()
        is_running = await request_stop(backend.storage, key, reason)
        if running := self._running_turns.find(key):
            running.request_stop(reason)
        return is_running or running is not None

    @traced
    async def find_turns(
        self,
        *,
        app_name: str | None = None,
        user_id: str | None = None,
        status: TurnPhase | None = None,
    ) -> list[TurnInfo]:
        """Returns the turns of sessions, by app, user and session.

        Args:
            app_name: Only this app's.
            user_id: Only this user's, of the app.
            status: Only those with this status; by default all that are running,
                stopping or abandoned.
        """
        app_name, user_id = validation.check_scope(app_name, user_id)
        if status is not None:
            validation.check_choice("status", status, get_args(TurnPhase))
        backend = await self._backends.backend()
        return await find_turns(backend.storage, app_name, user_id, status)

    async def recover_turns(
        self,
        runner: Runner,
        *,
        resume: bool = False,
        run_config: RunConfig | None = None,
    ) -> None:
        """Closes the abandoned turns of the runner's app, until it is cancelled.

        A turn is abandoned when its process has ended, or is paused for long. The
        calls that it has left open are answered with an error, so that the session can
        go on; those that wait for a person stay open. Where only the answer is missing,
        an event marks that. The next turn of the session does so too. Any number of
        processes may call this. A session that cannot be repaired is logged, and tried
        again later and later; nothing but a cancellation ends this call.

        Args:
            runner: The runner, built with this service.
            resume: Whether the invocation goes on then, if the app is resumable: twice
                at most, if its process dies again.
            run_config: Passed to ``run_async`` then; it decides whether answers stream.
        """
        running_loop()
        check_id("app_name", _app_of(runner))
        resume = validation.check_flag("resume", resume) and _is_resumable(runner)
        turns, running = self._turns, self._running_turns
        await Recovery(turns, running, runner, run_config, resumes=resume).run()

    @override
    @traced
    async def delete_session(
        self, *, app_name: str, user_id: str, session_id: str
    ) -> None:
        """Deletes a session and its events; app and user state stay.

        The session is gone at once, and its events when this returns. If the call is
        interrupted, the next delete, :meth:`prune` or ``create_session`` of the same id
        removes the rest.
        """
        key = lookup_key(app_name, user_id, session_id)
        if key is None:
            return
        backend = await self._backends.backend()
        try:
            await deletion.remove_session(backend.storage, key)
        finally:
            self._backends.forget(*key)

    @override
    async def flush(self) -> None:
        """Does nothing: every append is committed before it returns."""

    @traced
    async def update_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        title: str | NotGiven | None = NOT_GIVEN,
        labels: Mapping[str, str] | NotGiven | None = NOT_GIVEN,
        ttl: float | timedelta | str | NotGiven | None = NOT_GIVEN,
        expire_time: datetime | str | NotGiven | None = NOT_GIVEN,
    ) -> SessionSummary:
        """Changes a session's details, and leaves what is not given as it is.

        Revision and last update time do not change, so no loaded ``Session`` becomes
        stale. Subscribers receive the change as ``updated``, unless the service runs
        without transactions.

        Args:
            title: The new title, which the state shows as the display name of ADK's
                web interface; None for none.
            labels: All its labels from now on; None for none.
            ttl: Seconds, a ``timedelta``, or text such as ``"7200s"``, that it lives
                from now on, and again after each append and turn, in place of an
                ``expire_time`` it may have.
            expire_time: When it is gone, in place of a ``ttl`` it may have. None for
                either, or a ``ttl`` of ``math.inf``, if it is not to expire.

        Returns:
            The session as it is now, without its state.

        Raises:
            SessionNotFoundError: it is not stored, or has expired.
            InvalidInputError: none is given, or both a ``ttl`` and an ``expire_time``.
        """
        key = session_key(app_name, user_id, session_id)
        details = StoredDetails.given(
            self._backends.clock.now(),
            title=title,
            labels=labels,
            ttl=ttl,
            expire_time=expire_time,
        )
        backend = await self._backends.backend()
        renewed = details.with_renewed_expiry(backend.storage.clock.now())
        found = await update_details(backend.storage, key, renewed.changed())
        backend.sweep.expect(found.expire_time)
        return found.summary(self._hooks)

    @traced
    async def find_sessions(
        self,
        *,
        app_name: str,
        user_id: str | None = None,
        title: str | None = None,
        title_contains: str | None = None,
        labels: Mapping[str, str] | None = None,
        where: Mapping[str, Any] | None = None,
        waiting: Literal[True] | None = None,
        order_by: Literal["create_time", "update_time"] = "create_time",
        newest_first: bool = True,
        families: bool = False,
        with_state: bool = True,
        limit: int = 50,
        page_token: str | None = None,
    ) -> SessionPage:
        """Finds sessions, a page at a time.

        Each page is of one point in time. In order of creation, a session that exists
        from the first page to the last is returned exactly once, whatever is written,
        created or deleted in the meantime. In order of their last update, so is each
        that nothing is appended to in the meantime. One that moves may be returned
        again, each time as it is then; or, if it moves to the beginning of the order
        before a page has reached it, not at all: ``watch`` reports it. One that
        another tool has damaged is left out.

        Args:
            user_id: Only this user's.
            title: Only those with exactly this title.
            title_contains: Only those with this text in their title; capitals make no
                difference among ASCII letters. No index helps: MongoDB reads the
                sessions of the app, or of the user, until the page is full.
            labels: Only those with all of these labels; they may have others.
            where: Only those whose own state has these values: strings, numbers,
                bools and None, by top-level keys. Types must match, except among
                numbers: 1 equals 1.0, but not True. An int beyond 64 bits equals no
                float.
            waiting: True for those with a call that waits for a person.
            order_by: ``create_time``, or ``update_time``: when the last event was
                stored, or the creation. The latter needs a ``user_id``.
            newest_first: Whether those created or updated last come first.
            families: Whether to leave out the versions of a conversation that their
                family does not show: see :meth:`find_branches`.
            with_state: Whether their state is loaded, as ``list_sessions`` does.
            limit: How many a page has at most, up to 1,000. It has fewer if states
                would take more than 16 MB.
            page_token: The ``next_page_token`` of the page before. Only ``limit``
                and ``with_state`` may differ from that page's arguments.

        Raises:
            InvalidInputError: the token is not one of this search, or the order needs
                a user.
        """
        search.check_limit(limit)
        validation.check_flag("with_state", with_state)
        wanted = search.new_search(
            app_name,
            user_id,
            StoredDetails.given(is_new=True, title=title, labels=labels),
            where,
            title_contains=title_contains,
            waiting=waiting,
            families=families,
            order_by=order_by,
            newest_first=newest_first,
            hooks=self._hooks,
        )
        backend = await self._backends.backend()
        sessions, _, following = await search.read_page(
            backend.storage, wanted, page_token, limit, with_state=with_state
        )
        return SessionPage(sessions=sessions, next_page_token=following)

    @traced
    async def get_event(
        self, *, app_name: str, user_id: str, session_id: str, event_id: str
    ) -> Event | None:
        """Returns an event of a session by its id, or None; it has an index.

        Args:
            event_id: The event's id.
        """
        key = lookup_key(app_name, user_id, session_id)
        id_ = lookup_id("event_id", event_id)
        if key is None or id_ is None:
            return None
        backend = await self._backends.backend()
        return await backend.reads.read_event(key, id_)

    def iter_events(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        after_revision: int | str = 0,
        before_revision: int | str | None = None,
        newest_first: bool = False,
        limit: int | None = None,
        invocation_id: str | None = None,
        rewound: bool = True,
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """Iterates over a session's events with their revisions, in flat memory.

        Events that are appended meanwhile come as well, unless ``newest_first``. To
        stop early needs no care: nothing is left open on the server.

        Ids of invocations have no index: with ``invocation_id`` or ``rewound=False``
        the server looks through the session's log. With ``after_load`` only this
        process can find them, and decodes each page of it.

        Args:
            after_revision: Only events that were appended after it. A ``place`` of a
                subscription also names the session that it was of.
            before_revision: Only events that were appended before it; or a place.
            newest_first: Whether to begin with the latest.
            limit: The largest number to return.
            invocation_id: Only events of this invocation.
            rewound: Whether events that rewinds have undone are returned too. If not,
                it returns what ADK makes prompts of, neither these nor the rewinds, as
                the log is when the iteration begins.

        Raises:
            SessionNotFoundError: when iterating: the session is not stored, has
                expired, or was deleted meanwhile, even if it was recreated.
        """
        key = session_key(app_name, user_id, session_id)
        after = Place.of_argument("after_revision", after_revision)
        before = Place.of_argument("before_revision", before_revision)
        validation.check_revision("limit", limit)
        validation.check_flag("newest_first", newest_first)
        validation.check_flag("rewound", rewound)
        if invocation_id is not None:
            invocation_id = validation.check_string("invocation_id", invocation_id)
        wanted = event_log.LogRange(
            after.revision or 0,
            None if before.revision is None else before.revision - 1,
            newest_first,
            limit,
            created=after.create_time or before.create_time,
        )
        return self._events(key, wanted, invocation_id, rewound=rewound)

    async def _events(
        self,
        key: SessionKey,
        wanted: event_log.LogRange,
        invocation_id: str | None,
        *,
        rewound: bool,
    ) -> AsyncGenerator[tuple[int, Event], None]:
        if (left := wanted.limit) == 0:
            return
        select = partial(
            event_log.select_events,
            key=key,
            wanted=wanted,
            invocation_id=invocation_id,
            rewound=rewound,
        )
        named = key.app_name, key.session_id
        async for each in self._logged("iter_events", *named, read=select):
            event = documents.decode_event(each, self._hooks)
            if invocation_id in {None, event.invocation_id}:
                yield each.revision, event
                left = None if left is None else left - 1
                if left == 0:
                    return

    async def _logged(
        self,
        operation: str,
        *named: str,
        read: Callable[[Storage], AsyncGenerator[list[EventRecord]]],
    ) -> AsyncGenerator[EventRecord, None]:
        """Read events in pages, each an operation of its own."""
        pages: AsyncGenerator[list[EventRecord]] | None = None
        while True:
            with Operation(operation, self.database_name, *named):
                backend = await self._backends.backend()
                pages = pages or read(backend.storage)
                page = await anext(pages, None)
            if page is None:
                return
            for each in page:
                yield each

    def iter_user_events(
        self, *, app_name: str, user_id: str
    ) -> AsyncGenerator[UserEvent, None]:
        """Iterates over the events of all of a user's sessions, in flat memory.

        The order is by session id, then by revision. There are as many reads as pages
        of events, however many sessions. If a session is deleted meanwhile, its events
        end there; if it is recreated under the same id, the new one's are left out.
        """
        app_name, user_id = check_id("app_name", app_name), check_id("user_id", user_id)
        return self._user_events(app_name, user_id)

    async def _user_events(
        self, app_name: str, user_id: str
    ) -> AsyncGenerator[UserEvent, None]:
        read = partial(event_log.read_user_log, app_name=app_name, user_id=user_id)
        async for each in self._logged("iter_user_events", app_name, read=read):
            event = documents.decode_event(each, self._hooks)
            yield UserEvent(each.key.session_id, each.revision, event)

    @traced
    async def get_session_at(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        revision: int | str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Returns a session as it was at a revision, or None if it is not stored.

        That is its first events, and the state it had after them. App and user state
        are as they are now: only sessions have a log. An append to it is stale, unless
        the session is still at this revision.

        Args:
            revision: The revision; 0 is the session as it was created. Or a ``place``
                of a subscription, for which a session made anew since is not stored.
            config: Which of these events to load, as in :meth:`get_session`.

        Raises:
            InvalidInputError: the session has not reached that revision.
            TrimmedError: its log begins later: it was trimmed.
        """
        key = session_key(app_name, user_id, session_id)
        at = Place.of_argument("revision", revision)
        config = validation.check_config(config)
        backend = await self._backends.backend()
        found = await event_log.read_session_at(
            backend.storage, key, at.revision or 0, at.create_time, config
        )
        return to_session(found) if found else None

    @traced
    async def fork_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        at_revision: int | None = None,
        before_invocation_id: str | None = None,
        new_session_id: str | None = None,
        config: GetSessionConfig | None = None,
    ) -> Session:
        """Creates a session with another's events up to a revision, and its state then.

        It belongs to the same user, has the title, the labels and the time to live of
        the other, and is independent of it from then on. App and user state stay as
        they are. The server copies the events in steps; the session exists once it is
        whole. If the call is interrupted, :meth:`prune` or a ``create_session`` of the
        same id removes the incomplete copy, a minute later at the earliest.

        Args:
            at_revision: After how many appends; all there are by default.
            before_invocation_id: Or before the first event of this invocation, as a
                rewind to it would be.
            new_session_id: The new session's id, stripped; generated if blank or None.
            config: Which events are returned, as in :meth:`get_session`.

        Raises:
            SessionNotFoundError: the session is not stored, or is deleted meanwhile.
            AlreadyExistsError: the new session's id is taken.
            InvalidInputError: the session has not reached that revision or has no such
                invocation, or both are given.
            TrimmedError: the session's log begins later: it was trimmed.
            StorageUnavailableError: the session was trimmed meanwhile; try again.
            UnknownOutcomeError: the new session, whole, may have been stored or not.
        """
        key = session_key(app_name, user_id, session_id)
        validation.check_revision("at_revision", at_revision)
        until: int | str | None = at_revision
        if before_invocation_id is not None:
            name = "before_invocation_id"
            until = validation.check_string(name, before_invocation_id)
            if at_revision is not None:
                raise InvalidInputError(f"Give at_revision or {name}, not both.")
        target = session_key(app_name, user_id, _given_or_new(new_session_id))
        config = validation.check_config(config)
        backend = await self._backends.backend()
        await copy_session(backend.storage, key, target, until)
        with reporting_stored_unread():
            stored = await backend.reads.read_session(target, config)
        if stored is None:
            raise session_not_found_error(target.session_id)
        return to_session(stored)

    @traced
    async def trim_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        keep_last: int | None = None,
        before_revision: int | None = None,
        older_than: float | timedelta | str | None = None,
        dry_run: bool = False,
    ) -> int:
        """Removes a session's oldest events, and keeps its state and its revision.

        Give exactly one criterion. Fewer events are removed where the log may not be
        cut: between a function call and its responses, and between an event and a later
        rewind that has undone it. A call that may still get a response stays: for a
        day, or for 30 days if it is long-running. What was removed can neither be read
        nor watched any more, and the log begins later for forks and exports; state as
        of earlier revisions is lost. An event that was removed is not recognised if it
        is appended again.

        It removes a little at a time, while others read and append. If it is
        interrupted, no reader is shown a part: the next trim of the session resumes it.

        Args:
            keep_last: Keep at least so many of the latest events, 1 or more.
            before_revision: Remove events before this revision.
            older_than: Seconds, a ``timedelta``, or text such as ``"7200s"``: remove
                events from the first on, up to one that is not older, by its timestamp.
            dry_run: Only count. It does not know what an interrupted trim has left.

        Returns:
            How many events were removed, or would be.

        Raises:
            SessionNotFoundError: the session is not stored.
            InvalidInputError: a criterion is invalid, not exactly one is given, or the
                session has not reached the revision.
            UnknownOutcomeError: a part may be removed; call it again for the rest.
        """
        key = session_key(app_name, user_id, session_id)
        given = [each is not None for each in (keep_last, before_revision, older_than)]
        if sum(given) != 1:
            message = "Give exactly one of keep_last, before_revision and older_than."
            raise InvalidInputError(message)
        if keep_last is not None:
            validation.check_count("keep_last", keep_last)
        validation.check_revision("before_revision", before_revision)
        age = None
        if older_than is not None:
            age = metadata.check_duration("older_than", older_than)
        is_dry_run = validation.check_flag("dry_run", dry_run)
        backend = await self._backends.backend()
        storage = backend.storage
        before_time = None if age is None else await storage.ask_time() - age
        criterion = trim.Criterion(keep_last, before_revision, before_time)
        return await trim.trim(storage, key, criterion, is_dry_run=is_dry_run)

    @traced
    async def redact_events(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        event_ids: Sequence[str] | None = None,
        invocation_id: str | None = None,
        replacement: str = "[redacted]",
        state: bool = False,
        forks: bool = False,
    ) -> int:
        """Replaces the content of events for good: texts, calls, values that they set.

        The events stay in the log, with their ids, authors, times, invocations and
        revisions; calls and responses keep ids and names, and wait for nobody any
        longer. No read cache has the old events, and who watches receives ``redacted``
        for each. Not reached are backups, exports, MongoDB's oplog until it rolls over,
        what other events repeat, and forks, unless ``forks=True``. That also reaches
        messages that were asked again.

        Values that the events have set stay in state: a warning in the log names the
        keys, and ``state=True`` replaces them first. Keys of app and user state are
        known only while the events still have the values.

        Up to 100 events are replaced in one transaction. If the call is interrupted,
        repeat it: no loaded ``Session`` becomes stale, and a running turn goes on.

        Args:
            event_ids: The events.
            invocation_id: Or the invocation whose events are redacted, all of them.
            replacement: What stands in the place of texts and values.
            state: Whether to replace the values in state that come from the events.
            forks: Whether to do the same in forks of the session, and in forks of them,
                also in those that were trimmed.

        Returns:
            How many events were redacted, copies in forks included, without those that
            were before.

        Raises:
            SessionNotFoundError: the session is not stored. What is deleted meanwhile
                is passed over, and its forks are not.
            InvalidInputError: an event or the invocation is not in the session, which
                is then named, or not exactly one of both is given. Nothing was
                redacted.
            StorageError: a hook has sealed an event, and the service has none.
            StorageUnavailableError: another program has locked the session. Call it
                again for the rest.
        """
        key = session_key(app_name, user_id, session_id)
        if (event_ids is None) == (invocation_id is None):
            raise InvalidInputError("Give either event_ids or an invocation_id.")
        wanted: list[str] | str
        if event_ids is None:
            wanted = validation.check_string("invocation_id", invocation_id)
        else:
            wanted = validation.check_event_ids("event_ids", event_ids)
        replacement = validation.check_text("replacement", replacement)
        validation.check_flag("state", state)
        validation.check_flag("forks", forks)
        # In its transactions hooks are called, in this loop.
        storage = await self._backends.storage(stays=True)
        part = await redaction.find_part(storage, key, wanted)
        found = await redaction.preview(storage, part, replacement, forks=forks)
        try:
            count = await redaction.redact(
                storage, part, replacement, state=state, forks=forks
            )
        finally:
            self._backends.forget(*(key[:2] if forks else key))
        if found.state_keys and not state:
            logger.warning(
                "Values of redacted events of session %s are still in its state, under"
                " %s. To replace them as well, redact with state=True.",
                quoted(key.session_id),
                ", ".join(map(quoted, found.state_keys)),
            )
        return count

    @traced
    async def prune(
        self,
        progress: Callable[[Pruned], object] | None = None,
        *,
        app_name: str | None = None,
        idle_for: float | timedelta | str | None = None,
        created_before: datetime | str | None = None,
        dry_run: bool = False,
    ) -> Pruned:
        """Removes expired sessions; or instead those that are idle or old.

        Without ``idle_for`` and ``created_before``, it removes sessions that have
        expired, and what interrupted deletes have left. With one of them it removes
        the sessions that meet it, with both those that meet both; but none that has a
        ``ttl`` or ``expire_time``: it expires by itself.

        Expired sessions are removed soon in any case, while a process uses the
        database. The server's clock decides what has expired.

        Sessions are removed together with their events, in small steps, each a
        transaction of its own; app and user state stay. A session that an event is
        appended to meanwhile stays. The call may be interrupted, repeated, and made by
        any number of processes at the same time. Subscriptions and consumers receive
        ``deleted`` for each session.

        Args:
            progress: Called after each step, with what was removed so far.
            app_name: Only this app's sessions.
            idle_for: Those that were created so many seconds ago, and have no later
                event, by the events' timestamps, which are their writers'; a
                ``timedelta`` will do.
            created_before: Those created before this time: a ``datetime`` or ISO 8601
                text, with a time zone.
            dry_run: Only count. Of deletes that were interrupted it does not know how
                many events are left.

        Raises:
            InvalidInputError: an argument is of a wrong type, ``idle_for`` is not more
                than 0, or ``created_before`` is in the future.
        """
        if progress is not None:
            validation.check_callable("progress", progress)
        is_dry_run = validation.check_flag("dry_run", dry_run)
        pruned = Pruned()
        backend = await self._backends.backend()
        now = await backend.storage.ask_time()
        criteria = deletion.prune_criteria(app_name, idle_for, created_before, now)
        steps = deletion.prune_sessions(
            backend.storage, criteria, is_dry_run=is_dry_run
        )
        async for step in steps:
            pruned = Pruned(
                pruned.sessions + step.sessions, pruned.events + step.events
            )
            if progress is not None:
                progress(pruned)
        return pruned

    @traced
    async def delete_user(self, *, app_name: str, user_id: str) -> Erased:
        """Erases a user of an app.

        No collection contains the id afterwards, except in what others have written.
        Sessions, events, state, and what consumers have stored are removed in small
        steps. If the call is interrupted, or the user keeps writing meanwhile, call it
        again. A session that is created meanwhile is erased as well, or stays whole; an
        append to an erased one raises ``SessionNotFoundError``. Subscriptions receive
        ``deleted`` for each session. Turns in which agents run are ended first; it
        waits up to three seconds for them, and for forks of the user's sessions until
        they have failed, up to a minute if their process has just died.

        Raises:
            UnknownOutcomeError: a part may be erased; call it again for the rest.
        """
        app_name, user_id = check_id("app_name", app_name), check_id("user_id", user_id)
        return await self._erase(app_name, user_id)

    @traced
    async def delete_app(self, *, app_name: str) -> Erased:
        """Erases an app, with all its users, its state and its consumers.

        It works as :meth:`delete_user` does. Close the app's consumers before: their
        checkpoints are removed, and a running one ends with ``LeaseLostError``.
        """
        return await self._erase(check_id("app_name", app_name), None)

    async def _erase(self, app_name: str, user_id: str | None) -> Erased:
        backend = await self._backends.backend()
        is_inside = is_in_turn_of(app_name, user_id)
        if not is_inside:
            await end_turns_of_erased(backend.storage, app_name, user_id)
        erasing = erase_owner(backend.storage, app_name, user_id)
        try:  # the end of the caller's turn would interrupt it
            return await (uninterrupted(erasing) if is_inside else erasing)
        finally:
            self._backends.forget(app_name, user_id)

    def watch(
        self,
        app_name: str | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        after_revision: int | str | None = None,
        max_bytes: int = 64_000_000,
        partials: bool = False,
        after_partial: tuple[int, int] | None = None,
    ) -> Subscription:
        """Subscribes to a session, to a user's or an app's, or to the whole database.

        A session's subscription begins with a ``snapshot`` of its merged state. Then it
        receives every event ``appended``, ``state`` of its user or app that others set,
        and at last ``deleted``. The other subscriptions receive what happens from now
        on: ``created``, ``appended`` and ``deleted`` sessions, and ``state`` that was
        set without an event.

        Args:
            app_name: The app; None for every app.
            user_id: The user; None for every user of the app.
            session_id: The session, stripped; None for every session of the user.
            after_revision: Of a session: begin with the events after this revision
                instead, however old, then the ``state`` of its user and app as it is.
                Or after the ``place`` of an earlier subscription: if the session was
                deleted and made anew since, that begins with ``deleted`` and a
                ``snapshot``. A number cannot tell.
            max_bytes: How many bytes of changes, as MongoDB stores them, may wait to be
                read; 1,024 changes may in any case, and one of any size. Reading raises
                ``SlowSubscriberError`` where more would have to wait.
            partials: Receive the partials of running turns as well, as ``partial``, and
                their begin and end, as ``turn``. A session's subscription begins with
                all partials that are not stored yet, and with the last turn if that was
                stopped, failed or cut off; the other ones receive both from the next
                turn on.
            after_partial: Of a session, with ``partials``: leave out what was received
                before, up to this epoch and ``turn_position`` of a change.

        Raises:
            InvalidInputError: the arguments name nothing that can be watched, or
                ``max_bytes`` is not a number from 1.

        Reading raises ``TrimmedError`` first if the session's log begins after
        ``after_revision``. If it is trimmed while a reader is behind, that receives a
        ``snapshot`` as of the cut, and then what follows.
        """
        validation.check_count("max_bytes", max_bytes)
        validation.check_flag("partials", partials)
        validation.check_place("after_partial", after_partial)
        place = Place.of_argument("after_revision", after_revision)
        if place.partial is None:
            place = place._replace(partial=after_partial)
        if session_id is not None:
            if app_name is None or user_id is None:
                raise InvalidInputError("A session_id needs its app_name and user_id.")
            key = session_key(app_name, user_id, session_id)
            return SessionSubscription(
                self._feeds,
                key,
                place,
                max_bytes,
                partials=partials,
            )
        if after_revision is not None or after_partial is not None:
            message = "after_revision and after_partial need a session_id."
            raise InvalidInputError(message)
        scope = Scope(*validation.check_scope(app_name, user_id))
        return Subscription(self._feeds, scope, max_bytes, partials=partials)

    @traced
    async def wait_for(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        revision: int | None = None,
        predicate: Callable[[State], object] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  as asyncio's own waits have it
    ) -> State:
        """Returns a session's merged state once it has reached a point.

        Args:
            revision: Wait until the session has reached this revision.
            predicate: Or wait until this is true of its state; called for every
                change, so that no intermediate state is missed.
            timeout: The longest wait in seconds; None for no limit.

        Raises:
            TimeoutError: it was not reached in time.
            SessionNotFoundError: the session is not stored, or is deleted meanwhile.
            InvalidInputError: neither a revision nor a predicate is given, one is
                invalid, or the predicate is a coroutine function.
        """
        session_key(app_name, user_id, session_id)
        validation.check_revision("revision", revision)
        validation.check_seconds("timeout", timeout)
        if predicate is not None:
            validation.check_callable("predicate", predicate)
        if revision is None and predicate is None:
            message = "wait_for needs a revision or a predicate to wait for."
            raise InvalidInputError(message)
        running_loop()
        state: State = {}
        subscription = self.watch(app_name, user_id, session_id)
        change = None
        async with asyncio.timeout(timeout), subscription as changes:
            async for change in changes:
                state |= change.state_delta if change.state is None else change.state
                reached = changes.last_revision
                if revision is not None and reached is not None and reached >= revision:
                    return state
                if predicate is not None and _holds(predicate, state):
                    return state
        if change is None or change.kind != "deleted":
            raise service_closed_error()
        raise SessionNotFoundError(f"Session {session_id.strip()!r} was deleted.")

    def consumer(
        self,
        name: str,
        *,
        app_name: str | None = None,
        start: Start = "beginning",
        on_history_lost: OnHistoryLost = "raise",
        updates: bool = False,
    ) -> Consumer:
        """A durable consumer of all changes; it resumes where ``name`` has committed.

        Args:
            name: The name of its checkpoint.
            app_name: The app whose changes it gets; None for all.
            start: Where a new name begins: at the ``beginning`` of the log, each event
                of which is received as ``appended``, before later changes; or ``now``.
            on_history_lost: What to do when it was away for longer than MongoDB's
                oplog reaches back, or its collections were dropped: ``raise``
                ``HistoryLostError``; ``replay`` the log from its beginning; or
                ``skip`` to now, with a warning.
            updates: Whether it gets ``updated`` changes as well: a session's new title,
                labels or expiry.
        """
        name = check_id("name", name)
        app_name, _ = validation.check_scope(app_name, None)
        validation.check_choice("start", start, get_args(Start))
        validation.check_choice(
            "on_history_lost", on_history_lost, get_args(OnHistoryLost)
        )
        validation.check_flag("updates", updates)
        settings = ConsumerSettings(name, app_name, start, on_history_lost, updates)
        consumer = Consumer(self._backends, settings, self._lease_renewer)
        self._consumers.add(consumer)
        return consumer

    @traced
    async def consumers(self) -> list[ConsumerStatus]:
        """Returns the status of every consumer, by name, in all processes.

        Raises:
            ConfigurationError: in a standalone server, and mongomock, there are none.
        """
        backend = await self._backends.backend()
        return await load_statuses(backend.storage)

    def feed_stats(self) -> FeedStats:
        """The change feed's statistics; cheap enough to read every second."""
        ages = {each.name: each.checkpoint_age for each in self._consumers}
        reading = {name: age for name, age in ages.items() if age is not None}
        return replace(self._feeds.stats(), checkpoint_ages=reading)


def _app_of(runner: object) -> str:
    app_name = getattr(runner, "app_name", None)
    if not isinstance(app_name, str):
        raise InvalidInputError("runner must be a Runner of ADK's.")
    return app_name


def _is_resumable(runner: Runner) -> bool:
    config = runner.resumability_config
    return bool(config and config.is_resumable)


def _refuse_unknown(adk_kwargs: Mapping[str, object]) -> None:
    for unknown in adk_kwargs.keys() - {"agents_dir"}:
        known = ["agents_dir", *inspect.signature(MongoSessionService).parameters]
        (nearest,) = get_close_matches(unknown.lower(), known[:-1], n=1, cutoff=0)
        raise ConfigurationError(
            f"MongoSessionService has no argument {quoted(unknown)}. Did you mean"
            f" {nearest!r}?"
        )


def _check_default_ttl(default_ttl: object) -> float | None:
    if default_ttl is None or default_ttl == math.inf:
        return None
    try:
        return metadata.check_ttl(default_ttl)
    except InvalidInputError as error:
        raise ConfigurationError(f"default_{error}") from None


def _check_bytes(name: str, count: object) -> int:
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise ConfigurationError(f"{name} must be a number of bytes from 0.")
    return count


def _given_or_new(session_id: str | None) -> str:
    """The id, or a generated one if it is None or blank."""
    is_blank = isinstance(session_id, str) and not session_id.strip()
    return uuid.new_uuid() if session_id is None or is_blank else session_id


def _holds(predicate: Callable[[State], object], state: State) -> bool:
    result = predicate(state)
    if inspect.iscoroutine(result):
        result.close()
        message = "predicate must be a plain function: a coroutine is always true."
        raise InvalidInputError(message)
    return bool(result)


def backends_of(service: MongoSessionService) -> Backends:
    """Return the backends of a service, for the package's own tools."""
    return service._backends  # noqa: SLF001
