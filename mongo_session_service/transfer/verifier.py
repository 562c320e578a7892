"""Verification: a dry run of an import that reports everything that is not the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias

from mongo_session_service.codec.bson_values import is_same_value
from mongo_session_service.codec.documents import (
    encode_append,
    encode_state,
    event_document,
)
from mongo_session_service.codec.hooks import NO_HOOKS, Hooks, Owner
from mongo_session_service.model import scopes
from mongo_session_service.model.records import Document
from mongo_session_service.transfer.comparison import (
    SessionPlan,
    StatePlan,
    compare_session,
    compare_state,
)
from mongo_session_service.transfer.import_batches import (
    Batch,
    EncodedSession,
    EncodedState,
    encoded_batches,
)
from mongo_session_service.transfer.import_target import ImportTarget
from mongo_session_service.transfer.source_items import (
    EVERYTHING,
    Problem,
    Selection,
    Source,
    session_text,
)
from mongo_session_service.transfer.sources.service_source import ServiceSource
from mongo_session_service.transfer.sources.store_source import StoreSource

Readable: TypeAlias = StoreSource | ServiceSource


@dataclass(slots=True)
class Verified:
    """The result of a verification."""

    sessions: int = 0
    events: int = 0
    states: int = 0
    """Shared states that are not empty."""
    differences: int = 0

    @property
    def is_equal(self) -> bool:
        """Tell whether there are no differences."""
        return self.differences == 0


async def verify(
    source: Source,
    target: Readable,
    selection: Selection = EVERYTHING,
    *,
    is_exact: bool = False,
    on_difference: Callable[[Problem], None] = lambda _: None,
    on_progress: Callable[[Verified], None] = lambda _: None,
) -> Verified:
    """Compare the selected sessions of an open source with an open target.

    The comparison is the one by which an import decides what to write. Here everything
    that is not the same is reported, and nothing is written.

    Args:
        source: The expected sessions.
        target: The actual sessions.
        selection: Which sessions to compare.
        is_exact: Whether sessions that only the target has are differences too. This
            takes about a hundred bytes of memory for each session.
        on_difference: Called with each difference; it never quotes a value.
        on_progress: Called after each batch.
    """
    verified = Verified()

    def report(problem: Problem) -> None:
        verified.differences += 1
        on_difference(problem)

    stored: ImportTarget | _ServiceTarget
    call: AbstractAsyncContextManager[Any] = nullcontext()
    if isinstance(target, ServiceSource):
        stored = _ServiceTarget(target)
    else:
        stored = ImportTarget(target.connection, is_read_only=True)
        call = target.connection.translating_errors()
    compared: set[int] = set()  # hashed keys, which take little memory
    batches = encoded_batches(source, selection, stored.hooks)
    async with call, aclosing(batches):
        async for batch in batches:
            verified.sessions += batch.sessions_read
            verified.events += batch.events_read
            verified.states += batch.states_read
            for problem in await _batch_differences(batch, stored, is_exact=is_exact):
                report(problem)
            if is_exact:
                compared.update(hash(each.key) for each in batch.sessions)
            on_progress(verified)
    if is_exact:
        async for each in target.keys(selection):
            if isinstance(each, Problem):
                report(each)
            elif hash(each) not in compared:
                report(Problem(session_text(each), "only the target has it"))
    return verified


async def _batch_differences(
    batch: Batch, stored: ImportTarget | _ServiceTarget, *, is_exact: bool
) -> list[Problem]:
    problems = [*batch.problems, *batch.conflicts]
    for state in await stored.plan_states([*batch.states.values()]):
        where, reasons = str(state.state.shared), [*state.differences]
        revision = state.state.shared.revision
        # An import begins to count anew, so only two of our own stores count alike.
        is_counted = is_exact and revision is not None and bool(state.state.state)
        if is_counted and not is_same_value(revision, state.revision):
            reasons.append(f"revision {revision}, there {state.revision}")
        problems += (Problem(where, reason) for reason in reasons)
    for session in await stored.plan_sessions(batch.sessions):
        where, reasons = session_text(session.incoming.key), session.reasons
        problems += (Problem(where, reason) for reason in reasons)
    return problems


class _ServiceTarget:
    """A session service, whose sessions are compared as they would be stored."""

    hooks: Hooks = NO_HOOKS

    def __init__(self, source: ServiceSource) -> None:
        self._source = source

    async def plan_sessions(
        self, sessions: Sequence[EncodedSession]
    ) -> list[SessionPlan]:
        """Compare sessions, or parts of them, with those of the service."""
        return [
            compare_session(each, *await self._encoded(each), NO_HOOKS)
            for each in sessions
        ]

    async def _encoded(
        self, incoming: EncodedSession
    ) -> tuple[Document | None, list[Document]]:
        """Encode the service's session, and the events that a part of it may have."""
        key, begins = incoming.key, incoming.header.log_begins
        session = await self._source.load(key)
        if session is None:
            return None, []
        own = scopes.split(session.state).session
        state, _ = encode_state(own, Owner.of_session(key), NO_HOOKS)
        # What the public methods do not tell counts as equal.
        document: Document = {
            **incoming.session_document(),
            "state": state,
            "revision": begins + len(session.events),
            "update_time": session.last_update_time,
        }
        document.pop("title", None)
        first = incoming.offset - begins
        events = [
            event_document(encode_append(key, event, NO_HOOKS), revision)
            for revision, event in enumerate(
                session.events[first : first + len(incoming.appends) + 1],
                start=incoming.offset + 1,
            )
        ]
        return document, events

    async def plan_states(self, states: Sequence[EncodedState]) -> list[StatePlan]:
        """Compare shared states with those of the service."""
        plans = []
        for each in states:
            shared = each.shared
            found = await self._source.find_shared(shared.app_name, shared.user_id)
            state, _ = encode_state(found, shared.owner, NO_HOOKS)
            document = {"state": state, "revision": shared.revision}
            plans.append(compare_state(each, document, None, NO_HOOKS))
        return plans
