"""Re-sealing: stored content as the application's present hooks store it.

What is old is loaded, stored again, and loaded once more before anything is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import bson

from mongo_session_service.codec import bson_values, document_size, documents, hooks
from mongo_session_service.codec.hooks import Hooks, Judge, Owner, Subject
from mongo_session_service.codec.waiting_fields import (
    WAITING,
    decode_waiting,
    encode_waiting,
)
from mongo_session_service.errors import ConfigurationError
from mongo_session_service.model.records import Document, SessionKey

_STATES: Final = ("state", documents.INITIAL)


@dataclass(frozen=True, slots=True)
class Resealer:
    """Finds outdated values in a document, and seals them anew.

    A method returns the fields that change, none if all is current; of a field to be
    removed the value is None. It raises ``StorageError`` if ``after_load`` fails or
    another tool has written what is there,
    ``InvalidInputError`` if another function does, and ``ConfigurationError`` if what
    they make is not current or does not come back.
    """

    hooks: Hooks
    judge: Judge

    def states(self, document: Document, owner: Owner) -> Document:
        """Renew the state of a session or of an app or user, the initial one too."""
        changes: Document = {}
        for name in _STATES:
            fields = document.get(name)
            if isinstance(fields, dict) and (renewed := self.state(fields, owner)):
                changes[name] = {**fields, **renewed}
        return changes | self.waiting(document)

    def shared_state(self, document: Document) -> Document:
        """Renew the state of an app, or of one of its users."""
        id_ = document["_id"]
        owner = (
            Owner.of_shared(**id_) if isinstance(id_, dict) else Owner.of_shared(id_)
        )
        return self.states(document, owner)

    def waiting(self, document: Document) -> Document:
        """Renew the waiting calls of a session or an event, each sealed as an event."""
        id_, calls = document["_id"], document.get(WAITING) or []
        if all(
            "event" in each and not self._event({**each, "_id": id_}) for each in calls
        ):
            return {}
        key = SessionKey(*(id_[name] for name in SessionKey._fields))
        waiting = decode_waiting(document, self.hooks)
        return {WAITING: encode_waiting(waiting, key, self.hooks)[WAITING]}

    def state(self, fields: Document, owner: Owner) -> Document:
        """Renew those fields of a state that are old."""
        renewed = self._values(bson_values.decode_fields(fields), owner)
        return bson_values.encode_fields(renewed)

    def event(self, document: Document) -> Document:
        """Renew an event: its content, its delta, and the calls that wait since."""
        return self._event(document) | self.waiting(document)

    def _event(self, document: Document) -> Document:
        owner = Owner(document["_id"]["app_name"], document["_id"]["user_id"])
        subject = Subject(*owner[:2], None)
        fields, content, delta = _split_event(document)
        is_old = not hooks.is_current(self.judge, content, subject)
        renewed = self._values(delta, owner)
        if not (is_old or renewed):
            return {}
        if is_old:
            content = self._content(hooks.join_content(fields, content, {}), owner)
            self._check_current(content, subject)
        fields = hooks.join_content(fields, content, {**delta, **renewed})
        event = bson_values.encode_value(fields)
        encoded = bson.encode(event)
        document_size.check_event_size(fields["id"], delta, len(encoded))
        is_wrapped = documents.is_wrapped(encoded) or None
        return {"event": event, "wrapped": is_wrapped, "hooked": True}

    def _values(self, state: dict[str, Any], owner: Owner) -> dict[str, Any]:
        old = {
            key: value
            for key, value in state.items()
            # None marks a removed key, and is never sealed.
            if value is not None
            and not hooks.is_current(self.judge, value, owner.subject(key))
        }
        loaded = self.hooks.loaded_state(old, owner)
        renewed = self.hooks.state_to_store(loaded, owner)
        for key, value in renewed.items():
            self._check_current(value, owner.subject(key))
        _check_same(loaded, self.hooks.loaded_state(renewed, owner))
        return renewed

    def _content(self, fields: dict[str, Any], owner: Owner) -> dict[str, Any]:
        loaded = self.hooks.loaded_event(fields, owner)
        renewed = self.hooks.event_to_store(loaded, owner)
        _check_same(loaded, self.hooks.loaded_event(renewed, owner))
        return hooks.split_content(renewed)[0]

    def _check_current(self, stored: Any, subject: Subject) -> None:
        if stored is None or not hooks.is_current(self.judge, stored, subject):
            message = (
                "is_current does not accept what before_store returns: the service"
                " needs a before_store that uses the new key"
            )
            raise ConfigurationError(message)


def _split_event(document: Document) -> tuple[Document, Document, dict[str, Any]]:
    fields = document["event"]
    if "wrapped" in document:
        fields = bson_values.decode_value(fields)
    try:
        content, delta = hooks.split_content(fields)
        hooks.join_content(fields, content, delta)
    except (KeyError, TypeError):  # another tool's
        raise bson_values.UnreadableError("The event") from None
    return fields, content, delta


def _check_same(loaded: dict[str, Any], again: dict[str, Any]) -> None:
    if not bson_values.is_same_value(loaded, again):
        message = "after_load does not return what before_store was given"
        raise ConfigurationError(message)
