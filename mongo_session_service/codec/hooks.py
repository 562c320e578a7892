"""Application hooks: ``before_store`` and ``after_load``, applied to events and state.

Content is an event, and each value of state. A value of state is changed once, and is
then the same in the event that sets it and in the state it is set in. What the storage
works with stays as it is: ids, times, revisions, and the keys of state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from google.adk.sessions.state import State

from mongo_session_service._public import public
from mongo_session_service.codec.bson_values import is_json
from mongo_session_service.codec.events import is_event
from mongo_session_service.codec.extended_json import with_type_tags, without_type_tags
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
    """Subject of a hook: which value it is given, and whose.

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
    """Owner of state, and the prefix that its keys have as ADK shows them."""

    app_name: str
    user_id: str | None = None
    prefix: str = ""
    session_id: str | None = None
    """Unknown to hooks: a session may be forked."""

    @classmethod
    def of_session(cls, key: SessionKey) -> Self:
        return cls(key.app_name, key.user_id, session_id=key.session_id)

    @classmethod
    def of_shared(cls, app_name: str, user_id: str | None = None) -> Self:
        prefix = State.APP_PREFIX if user_id is None else State.USER_PREFIX
        return cls(app_name, user_id, prefix)

    def __str__(self) -> str:
        if self.session_id is not None:
            return f"session {quoted(self.session_id)}"
        if self.user_id is not None:
            return f"user {quoted(self.user_id)} of app {quoted(self.app_name)}"
        return f"app {quoted(self.app_name)}"

    def subject(self, key: str) -> Subject:
        key = self.prefix + key
        is_apps = key.startswith(State.APP_PREFIX)
        return Subject(self.app_name, None if is_apps else self.user_id, key)


class _Change(NamedTuple):
    """A hook, how it is called, and how its failure is reported."""

    hook: Hook
    name: str
    error: type[MongoSessionServiceError]

    def value(self, value: Any, subject: Subject) -> Any:
        """Have the hook change a value.

        Its own error may quote the value, and so is neither shown nor chained.
        """
        failure = "a result that is not JSON"
        try:
            result = self.hook(with_type_tags(value), subject)
            if is_json(result):
                return without_type_tags(result)
            if inspect.iscoroutine(result):
                result.close()
        except Exception as caught:  # noqa: BLE001  it may be anything
            failure = type(caught).__name__
        raise self.error(
            f"{self.name} failed with {failure} for {_subject_text(subject)}."
        )

    def state(self, state: dict[str, Any], owner: Owner) -> dict[str, Any]:
        """Change each value of state; None marks a removed key, and stays."""
        return {
            key: value if value is None else self.value(value, owner.subject(key))
            for key, value in state.items()
        }

    def content(self, content: dict[str, Any], owner: Owner) -> dict[str, Any]:
        subject = Subject(owner.app_name, owner.user_id, None)
        changed = self.value(content, subject)
        if isinstance(changed, dict) and isinstance(changed.get("actions", {}), dict):
            return changed
        raise self.error(
            f"{self.name} must return an object for {_subject_text(subject)}."
        )


@dataclass(slots=True, eq=False)
class Hooks:
    """An application's hooks; either may be missing, and costs nothing then.

    A hook that fails raises ``InvalidInputError`` before anything is stored, and
    ``StorageError`` when it loads.
    """

    before_store: Hook | None = None
    after_load: Hook | None = None
    is_missing: bool = field(init=False)
    """Whether there is none, so that state is stored in clear."""
    has_both: bool = field(init=False)
    """Whether what is changed will be changed back."""

    def __post_init__(self) -> None:
        hooks = (self.before_store, self.after_load)
        self.is_missing, self.has_both = hooks == (None, None), None not in hooks

    def check_hooks(self) -> None:
        hooks = {"before_store": self.before_store, "after_load": self.after_load}
        for name, hook in hooks.items():
            is_plain = callable(hook) and not inspect.iscoroutinefunction(hook)
            if hook is not None and not is_plain:
                raise ConfigurationError(f"{name} must be a plain function.")

    def state_to_store(self, state: dict[str, Any], owner: Owner) -> dict[str, Any]:
        if self.before_store is None:
            return state
        storing = _Change(self.before_store, "before_store", InvalidInputError)
        return storing.state(state, owner)

    def loaded_state(self, state: dict[str, Any], owner: Owner) -> dict[str, Any]:
        """The inverse of :meth:`state_to_store`."""
        if self.after_load is None:
            return state
        return _Change(self.after_load, "after_load", StorageError).state(state, owner)

    def event_to_store(self, fields: dict[str, Any], owner: Owner) -> dict[str, Any]:
        """Apply ``before_store`` to an event's fields; its delta is state, done before.

        Without ``after_load`` it must stay an event: one that cannot be read would make
        its whole session unreadable.
        """
        if self.before_store is None:
            return fields
        content, delta = split_content(fields)
        storing = _Change(self.before_store, "before_store", InvalidInputError)
        stored = join_content(fields, storing.content(content, owner), delta)
        if self.after_load is None and not is_event(stored):
            message = (
                "Without after_load, before_store must return an event that ADK can"
                " read, without extra fields."
            )
            raise InvalidInputError(message)
        return stored

    def loaded_event(self, fields: dict[str, Any], owner: Owner) -> dict[str, Any]:
        """The inverse of :meth:`event_to_store`, its delta included."""
        if self.after_load is None:
            return fields
        content, delta = split_content(fields)
        loading = _Change(self.after_load, "after_load", StorageError)
        loaded = loading.content(content, owner)
        return join_content(fields, loaded, loading.state(delta, owner))


NO_HOOKS: Final = Hooks()


def _subject_text(subject: Subject) -> str:
    key = subject.state_key
    return "an event" if key is None else f"state key {quoted(key)}"


def split_content(fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split an event's fields into its content and the state it sets."""
    content = {name: it for name, it in fields.items() if name not in _IN_CLEAR}
    actions = {**content.pop("actions", {})}
    delta = actions.pop("state_delta", {})
    if actions:
        content["actions"] = actions
    return content, delta


def join_content(
    fields: dict[str, Any], content: dict[str, Any], delta: dict[str, Any]
) -> dict[str, Any]:
    """The inverse of :func:`split_content`."""
    actions = {**content.get("actions", {}), "state_delta": delta}
    if not delta:
        del actions["state_delta"]
    clear = {name: fields[name] for name in _IN_CLEAR}
    return {**content, "actions": actions, **clear}
