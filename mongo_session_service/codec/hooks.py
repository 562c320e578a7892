"""Application hooks: ``before_store`` and ``after_load``, applied to events and state.

Content is an event, and each value of state. A value of state is changed once, and is
then the same in the event that sets it and in the state it is set in. What the storage
works with stays as it is: ids, times, revisions, and the keys of state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self

from google.adk.sessions.state import State

from mongo_session_service._public import public
from mongo_session_service.codec.bson_values import is_json
from mongo_session_service.codec.events import is_event
from mongo_session_service.codec.extended_json import tagged, untagged
from mongo_session_service.errors import (
    ConfigurationError,
    InvalidInputError,
    MongoSessionServiceError,
    StorageError,
    quoted,
)
from mongo_session_service.model.records import SessionKey

_IN_CLEAR: Final = ("id", "timestamp")


@public
class Subject(NamedTuple):
    """What a hook is given, and whose it is.

    It stays the same when a session is forked. So a key for each user, or authenticated
    data, may be chosen by it.
    """

    app_name: str
    user_id: str | None
    """None for a value of an app's state."""
    state_key: str | None
    """With its prefix, as ADK shows it; None for an event."""


Hook = Callable[[Any, Subject], Any]
"""Makes JSON of JSON; of an event, an object of an object. A plain function, and pure:
it may be called at any time, in any thread, and as often as needed."""


class Owner(NamedTuple):
    """Whose state it is, and what its keys begin with as ADK shows them."""

    app_name: str
    user_id: str | None = None
    prefix: str = ""
    session_id: str | None = None
    """Of no interest to hooks: a session may be forked."""

    @classmethod
    def of_session(cls, key: SessionKey) -> Self:
        """A session, with the state it shares: its keys are as ADK shows them."""
        return cls(key.app_name, key.user_id, session_id=key.session_id)

    @classmethod
    def of_app(cls, app_name: str) -> Self:
        """An app."""
        return cls(app_name, None, State.APP_PREFIX)

    @classmethod
    def of_user(cls, app_name: str, user_id: str) -> Self:
        """A user."""
        return cls(app_name, user_id, State.USER_PREFIX)

    @classmethod
    def of_shared(cls, app_name: str, user_id: str | None) -> Self:
        """A user; an app, if that is None."""
        if user_id is None:
            return cls.of_app(app_name)
        return cls.of_user(app_name, user_id)

    def __str__(self) -> str:
        if self.session_id is not None:
            return f"session {quoted(self.session_id)}"
        if self.user_id is not None:
            return f"user {quoted(self.user_id)} of app {quoted(self.app_name)}"
        return f"app {quoted(self.app_name)}"

    def subject(self, key: str) -> Subject:
        """One of its keys."""
        key = self.prefix + key
        is_apps = key.startswith(State.APP_PREFIX)
        return Subject(self.app_name, None if is_apps else self.user_id, key)


@dataclass(frozen=True, slots=True)
class Hooks:
    """An application's hooks; either may be missing, and costs nothing then."""

    before_store: Hook | None = None
    after_load: Hook | None = None

    @property
    def has_both(self) -> bool:
        """Whether what is changed will be changed back."""
        return self.before_store is not None and self.after_load is not None

    def check(self) -> None:
        """Refuse what cannot be called.

        Raises:
            ConfigurationError: a hook is no plain function.
        """
        for name, hook in (
            ("before_store", self.before_store),
            ("after_load", self.after_load),
        ):
            if hook is None:
                continue
            if not callable(hook) or inspect.iscoroutinefunction(hook):
                raise ConfigurationError(f"{name} must be a plain function.")

    def state_to_store(self, state: dict[str, Any], owner: Owner) -> dict[str, Any]:
        """State, or a delta to it, as it is stored.

        Raises:
            InvalidInputError: the hook failed.
        """
        if self.before_store is None:
            return state
        return _each(state, owner, partial(_stored, self.before_store))

    def loaded_state(self, state: dict[str, Any], owner: Owner) -> dict[str, Any]:
        """The inverse of :meth:`state_to_store`.

        Raises:
            StorageError: the hook failed.
        """
        if self.after_load is None:
            return state
        return _each(state, owner, partial(_loaded, self.after_load))

    def event_to_store(self, fields: dict[str, Any], owner: Owner) -> dict[str, Any]:
        """An event's fields as they are stored; its delta is state, and changed before.

        What nothing changes back has to stay an event: one that cannot be read would
        take its whole session with it.

        Raises:
            InvalidInputError: the hook failed.
        """
        if self.before_store is None:
            return fields
        subject = Subject(owner.app_name, owner.user_id, None)
        content, delta = _apart(fields)
        stored = _stored(self.before_store, content, subject)
        if not _is_object(stored):
            message = f"before_store must make an object of {_named(subject)}."
            raise InvalidInputError(message)
        stored = _together(fields, stored, delta)
        if self.after_load is None and not is_event(stored):
            message = (
                "before_store, without after_load, must leave an event one that ADK can"
                " read, with no other fields."
            )
            raise InvalidInputError(message)
        return stored

    def loaded_event(self, fields: dict[str, Any], owner: Owner) -> dict[str, Any]:
        """The inverse of :meth:`event_to_store`, its delta included.

        Raises:
            StorageError: the hook failed.
        """
        if self.after_load is None:
            return fields
        subject = Subject(owner.app_name, owner.user_id, None)
        content, delta = _apart(fields)
        loaded = _loaded(self.after_load, content, subject)
        if not _is_object(loaded):
            message = f"after_load must make an object of {_named(subject)}."
            raise StorageError(message)
        return _together(fields, loaded, self.loaded_state(delta, owner))


NO_HOOKS: Final = Hooks()


def _each(
    state: dict[str, Any], owner: Owner, change: Callable[[Any, Subject], Any]
) -> dict[str, Any]:
    """State, each value changed; None is what a key has that is gone, and stays."""
    return {
        key: value if value is None else change(value, owner.subject(key))
        for key, value in state.items()
    }


def _stored(hook: Hook, value: Any, subject: Subject) -> Any:
    return _called(hook, value, subject, "before_store", InvalidInputError)


def _loaded(hook: Hook, value: Any, subject: Subject) -> Any:
    return _called(hook, value, subject, "after_load", StorageError)


def _called(
    hook: Hook,
    value: Any,
    subject: Subject,
    name: str,
    error: type[MongoSessionServiceError],
) -> Any:
    """What a hook makes of a value.

    A hook's own error may quote what it was given, and so is neither shown nor chained.
    """
    failure = "what is not JSON"
    try:
        result = hook(tagged(value), subject)
        if is_json(result):
            return untagged(result)
        if inspect.iscoroutine(result):
            result.close()
    except Exception as caught:  # noqa: BLE001  it may be anything
        failure = type(caught).__name__
    raise error(f"{name} failed with {failure} for {_named(subject)}.")


def _named(subject: Subject) -> str:
    key = subject.state_key
    return "an event" if key is None else f"state key {quoted(key)}"


def _is_object(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    actions = value.get("actions", {})
    return isinstance(actions, dict)


def _apart(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """An event's content, and the state it sets."""
    content = {name: it for name, it in fields.items() if name not in _IN_CLEAR}
    actions = {**content.pop("actions", {})}
    delta = actions.pop("state_delta", {})
    if actions:
        content["actions"] = actions
    return content, delta


def _together(
    fields: dict[str, Any], content: dict[str, Any], delta: dict[str, Any]
) -> dict[str, Any]:
    """The inverse of :func:`_apart`."""
    actions = {**content.get("actions", {}), "state_delta": delta}
    if not delta:
        del actions["state_delta"]
    clear = {name: fields[name] for name in _IN_CLEAR}
    return {**content, "actions": actions, **clear}
