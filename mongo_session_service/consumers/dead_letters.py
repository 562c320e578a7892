"""Dead letters: changes whose handler failed, kept for inspection and replay."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import bson
from google.adk.platform import time as platform_time

from mongo_session_service._public import public
from mongo_session_service.changes.change import Change
from mongo_session_service.changes.record import ChangeRecord
from mongo_session_service.codec import documents
from mongo_session_service.codec.bson_values import decode_fields, encode_fields
from mongo_session_service.codec.hooks import Hooks, Owner
from mongo_session_service.codec.resealer import Resealer
from mongo_session_service.consumers import handler as handlers
from mongo_session_service.errors import StorageError, quoted
from mongo_session_service.model.records import Document, SessionKey
from mongo_session_service.storage.connection import Connection
from mongo_session_service.storage.retries import retry_soon
from mongo_session_service.storage.tasks import uninterrupted
from mongo_session_service.storage.transactions import Txn

_LONGEST_MESSAGE: Final = 2000  # characters
_MAX_LETTER_BYTES: Final = 16 * 1024**2 - 64 * 1024
"""Bytes of a stored change; IDs, the message and the command need the rest."""


@public
@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A change that a consumer's handler failed on in every attempt."""

    consumer: str
    record: ChangeRecord
    error: str
    """The last exception: its type and text."""
    attempts: int
    time: float
    """When the last attempt failed, in seconds since 1970."""
    id: Document = field(repr=False)
    """Its ``_id``, which a change has however often it is delivered."""

    @property
    def change(self) -> Change:
        """The change itself.

        Raises:
            StorageError: this release of ADK cannot read its event, or it was too
                large to be kept: almost 16 MiB.
        """
        return self.record.change()

    @property
    def public_error(self) -> str:
        """The last exception without its text, if that may quote a credential.

        It may if the change holds one, or cannot be read.
        """
        with suppress(StorageError):
            if not self.change.is_withheld:
                return self.error
        return _error_type(self.error)


def new_dead_letter(
    consumer: str, record: ChangeRecord, error: Exception, attempts: int
) -> DeadLetter:
    """Make the dead letter of a change whose last attempt failed now."""
    now, id_ = platform_time.get_time(), _letter_id(consumer, record)
    return DeadLetter(consumer, record, _error_text(error), attempts, now, id_)


def letter_text(letter: DeadLetter) -> str:
    """Name a letter's change for a log: its kind, what it is of, its revision."""
    revision = letter.id.get("revision")
    after = "" if revision is None else f", revision {revision}"
    return f"{letter.id['kind']!r} of {quoted('/'.join(letter.record.owner))}{after}"


def _error_text(error: Exception) -> str:
    """Return an exception's type and text, in a form that can be stored."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  a handler's own code may raise anything
        text = type(error).__name__
    # Events may hold lone surrogates, which UTF-8 cannot encode.
    return text[:_LONGEST_MESSAGE].encode(errors="backslashreplace").decode()


async def store_dead_letter(
    connection: Connection, letter: DeadLetter, txn: Txn = None
) -> None:
    """Store a dead letter; it replaces an earlier one of the same change."""
    # An error's text may quote content that the application's hook encrypts.
    error_type = _error_type(letter.error)
    fits = size_of(letter.record) <= _MAX_LETTER_BYTES
    document = {
        "item": _encode(letter.record) if fits else None,
        "error": letter.error if connection.hooks.before_store is None else error_type,
        "attempts": letter.attempts,
        "time": letter.time,
    }
    await connection.dead_letters.replace_one(
        {"_id": letter.id}, document, upsert=True, session=txn
    )


class AlreadyHandledError(Exception):
    """Another caller has handled and removed the dead letter meanwhile."""


async def _remove_letter(
    connection: Connection, letter: DeadLetter, txn: Txn, _: object = None
) -> None:
    """Remove a letter, after its change was handled."""
    removed = await connection.dead_letters.delete_one({"_id": letter.id}, session=txn)
    if txn is not None and not removed.deleted_count:
        raise AlreadyHandledError


async def load_dead_letters(
    connection: Connection, consumer: str
) -> AsyncIterator[DeadLetter]:
    """Yield a consumer's dead letters, the oldest first."""
    letters, hooks = connection.dead_letters, connection.hooks
    ids = letters.find({"_id.consumer": consumer}, {"_id": 1}).sort("time", 1)
    for each in await retry_soon(lambda: ids.clone().to_list(None)):
        stored = await retry_soon(letters.find_one, each)
        if stored is not None:
            yield DeadLetter(
                consumer,
                _decode(stored, hooks),
                stored["error"],
                stored["attempts"],
                stored["time"],
                stored["_id"],
            )


async def replay_dead_letters(
    connection: Connection,
    consumer: str,
    handler: handlers.Handler,
    *,
    transactional: bool,
) -> int:
    """Call a handler once on each dead letter; return how many it handled."""
    handled = 0
    async for letter in load_dead_letters(connection, consumer):
        work = handlers.handler_call(handler, letter.record, connection)
        remove = partial(_remove_letter, connection, letter)
        try:
            if transactional:
                await handlers.run_interruptible_transaction(connection, work, remove)
            else:
                await work(None)
                await uninterrupted(retry_soon(remove, None))
            handled += 1
        except AlreadyHandledError:
            pass  # nothing is handled twice
        except handlers.HandlerFailedError as failed:
            again = replace(
                letter,
                error=_error_text(failed.error),
                attempts=letter.attempts + 1,
                time=platform_time.get_time(),
            )
            await uninterrupted(retry_soon(store_dead_letter, connection, again))
    return handled


def size_of(record: ChangeRecord) -> int:
    """The bytes of a change's content, as it would be kept."""
    return len(bson.encode(_encode(record) or {}))


def _letter_id(consumer: str, record: ChangeRecord) -> Document:
    """The ``_id`` of a change's letter, by which it is told from any other change."""
    content: Document = record.content or {}
    document = content.get("document", {})
    named = dict.fromkeys(("app_name", "user_id"))
    named |= zip(SessionKey._fields, record.owner, strict=False)
    id_ = {"consumer": consumer, "kind": record.kind, **named}
    match record.kind:
        case "appended" | "redacted":
            # The event's own id, too: a session may be created again under its name.
            id_["revision"] = document["_id"]["revision"]
            id_["event"] = document["event"].get("id")
            return id_ if record.kind == "appended" else {**id_, "time": record.time}
        case "created":
            return {**id_, "time": document["create_time"]}
        case "snapshot":
            begins = documents.log_begins(document)
            return {**id_, "revision": begins, "time": document["create_time"]}
        case "updated":
            return {**id_, "time": record.time, "digest": _digest(content["details"])}
        case "state":
            digest = _digest(encode_fields(content["delta"]))
            return {**id_, "time": record.time, "digest": digest}
        case _:  # deleted
            return {**id_, "time": record.time}


def _digest(content: Document) -> str:
    """A digest that tells changes of one millisecond apart: their time's precision."""
    return hashlib.sha256(bson.encode(content)).hexdigest()


def resealed_letter(stored: Document, resealer: Resealer) -> Document | None:
    """Seal a stored letter anew; None if all of it is current.

    The ``_id`` of a letter about state follows from the state as it is stored. The text
    of the error goes, as if the letter were stored now.
    """
    id_, before = stored["_id"], stored.get("item")
    if not before:  # too large to be kept, or a deletion
        return None
    after = {name: _resealed(id_, name, it, resealer) for name, it in before.items()}
    if after == before:
        return None
    letter = {**stored, "item": after, "error": _error_type(stored["error"])}
    record = _decode(letter, resealer.hooks)
    return letter | {"_id": _letter_id(id_["consumer"], record)}


def _resealed(id_: Document, name: str, content: Any, resealer: Resealer) -> Any:
    """Seal a field of a letter's content anew where it is not current."""
    owner = Owner(id_["app_name"], id_["user_id"])
    match name:
        case "delta":
            changes = resealer.state(content, owner)
        case "shared":
            return [each | resealer.shared_state(each) for each in content]
        case "waiting":
            named = {"_id": {name: id_[name] for name in SessionKey._fields}}
            changes = resealer.waiting(named | content)
        case "document" if id_["kind"] in {"appended", "redacted"}:
            changes = resealer.event(content)
        case "document":
            changes = resealer.states(content, owner)
        case _:  # details, which are in clear
            return content
    return {key: it for key, it in {**content, **changes}.items() if it is not None}


def _error_type(error: str) -> str:
    """Return a stored error without its text, which may quote content."""
    return error.partition(":")[0]


def _encode(record: ChangeRecord) -> Document | None:
    """Encode the content of a change; None if it is too large to be read."""
    if record.kind == "state" and record.content is not None:
        return {"delta": encode_fields(record.content["delta"])}
    return record.content


def _decode(stored: Document, hooks: Hooks) -> ChangeRecord:
    """Decode the change of a stored letter."""
    id_, content = stored["_id"], stored["item"]
    if content and "delta" in content:
        content = {"delta": decode_fields(content["delta"])}
    parts = (id_.get(name) for name in SessionKey._fields)
    owner = tuple(each for each in parts if each is not None)
    return ChangeRecord(id_["kind"], owner, content, id_.get("time", 0.0), hooks)
