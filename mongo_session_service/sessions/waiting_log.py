"""Waiting calls as a session's log has them, and as an append changes them.

An append that asks or answers reads, in its transaction, what waits so far. Only a
rewind, or more waiting calls than a document names, needs the log: the server looks
through it for the few events that matter. Where a hook has sealed them, all are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bson.timestamp import Timestamp

from mongo_session_service.codec.record import STATES, SessionRecord
from mongo_session_service.codec.waiting_calls import (
    ABORTED,
    ASKING,
    WaitingCalls,
    encode_waiting,
    waiting_calls,
    waiting_step,
)
from mongo_session_service.model.records import (
    Append,
    Document,
    SessionKey,
    WaitingStep,
)
from mongo_session_service.model.results import WaitingCall
from mongo_session_service.sessions import event_log
from mongo_session_service.sessions.details import change_statements
from mongo_session_service.sessions.event_log import LogAtRevision
from mongo_session_service.sessions.reads import lock_session
from mongo_session_service.sessions.writer import QueuedWrite
from mongo_session_service.storage.kernel import Storage
from mongo_session_service.storage.statements import Query
from mongo_session_service.storage.transactions import Transaction

_HAS_RESPONSE: Final = {"event.content.parts.function_response": {"$exists": True}}
_STEPS: Final = {
    "$or": [
        {"event.long_running_tool_ids": {"$exists": True}},
        {"event.content.parts.function_call.name": {"$in": list(ASKING)}},
        {"event.author": "user", **_HAS_RESPONSE},
        {"event.error_code": ABORTED, **_HAS_RESPONSE},
        {"event.actions.rewind_before_invocation_id": {"$exists": True}},
    ]
}

_Steps = list[tuple[int, WaitingStep]]


async def pending_calls_at(
    storage: Storage, log: LogAtRevision, as_of: Timestamp | None = None
) -> WaitingCalls:
    """Find the function calls that await an answer at the end of a log.

    The log may be of a session that is being copied.
    """
    steps, firsts = await _read_steps(storage, log, as_of=as_of)
    return WaitingCalls.of(_calls_after_steps(steps, firsts))


async def pending_call_fields(
    storage: Storage, log: LogAtRevision, key: SessionKey
) -> Document:
    """Encode the calls that await an answer, as fields of a new session's document."""
    waiting = await pending_calls_at(storage, log)
    fields = encode_waiting(waiting, key, storage.hooks)
    return {name: it for name, it in fields.items() if it is not None}


async def pending_calls_after(
    storage: Storage, session: SessionRecord, appends: Sequence[tuple[int, Append]]
) -> dict[int, Document]:
    """Encode the pending calls after each append that changes them, by revision."""
    hooks, key = storage.hooks, session.key
    before = session.waiting(hooks)
    rewound = {it.waiting.rewinds_before or "" for _, it in appends} - {""}
    is_counted = bool(rewound or before.more)
    calls = list(before.named)
    steps: _Steps = []
    firsts: dict[str, int] = {}
    if is_counted:
        steps, firsts = await _read_steps(storage, LogAtRevision.of(session), rewound)
    found: dict[int, Document] = {}
    for revision, append in appends:
        step = append.waiting
        firsts.setdefault(step.invocation_id, revision)
        if not step.has_effect:
            continue
        if is_counted:
            steps.append((revision, step))
            calls = _calls_after_steps(steps, firsts)
        else:
            calls = waiting_calls([(revision, step)], calls)
        after = WaitingCalls.of(calls)
        if after != before:
            before = after
            found[revision] = encode_waiting(after, key, hooks)
    return found


async def pending_calls_after_batch(
    storage: Storage, planned: Iterable[QueuedWrite], tx: Transaction
) -> dict[tuple[SessionKey, int], Document]:
    appends: dict[SessionKey, list[tuple[int, Append]]] = {}
    for each in planned:
        if isinstance(each.write, Append):
            append = (each.expected.revision + 1, each.write)
            appends.setdefault(each.write.key, []).append(append)
    ids = [
        key.id
        for key, several in appends.items()
        if any(append.waiting.has_effect for _, append in several)
    ]
    if not ids:
        return {}
    query = Query("sessions", {"_id": {"$in": ids}}, without=STATES)
    found: dict[tuple[SessionKey, int], Document] = {}
    for session in SessionRecord.read_all(await tx.find(query)):
        own = appends[session.key]
        # If it is at another revision, the batch is going to be refused.
        if session.revision == own[0][0] - 1:
            after = await pending_calls_after(storage, session, own)
            found |= {(session.key, revision): it for revision, it in after.items()}
    return found


async def refresh_waiting(
    storage: Storage, read: SessionRecord, tx: Transaction
) -> None:
    """Recompute a session's waiting calls from its log."""
    session = await lock_session(storage, read, tx)
    waiting = await pending_calls_at(storage, LogAtRevision.of(session), tx.time)
    fields = encode_waiting(waiting, read.key, storage.hooks)
    await tx.write(*change_statements(storage, session.change(waiting=fields)))


def _calls_after_steps(steps: _Steps, firsts: Mapping[str, int]) -> list[WaitingCall]:
    """Find the pending calls after a log's steps, without those that are undone."""
    undoing = [(n, it.rewinds_before) for n, it in steps if it.rewinds_before]
    undone = event_log.undone_parts(undoing, firsts)
    return waiting_calls(
        (revision, step)
        for revision, step in steps
        if not event_log.is_within(undone, revision)
    )


async def _read_steps(
    storage: Storage,
    log: LogAtRevision,
    rewound: Iterable[str] = (),
    as_of: Timestamp | None = None,
) -> tuple[_Steps, dict[str, int]]:
    """Read the steps of a log, and where the invocations begin that are rewound."""
    steps: _Steps = []
    firsts: dict[str, int] = {}
    outlines = event_log.read_outlines(storage, log, _STEPS, as_of=as_of)
    async for revision, event in outlines:
        step = waiting_step(event)
        firsts.setdefault(step.invocation_id, revision)
        if step.has_effect:
            steps.append((revision, step))
    targets = {*rewound, *(it.rewinds_before or "" for _, it in steps)} - {""}
    if targets and not event_log.is_sealed(storage):
        firsts = await event_log.find_firsts(storage, log, targets, as_of)
    return steps, firsts
