"""Change: one committed change, as subscribers and consumers receive it."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final, Literal

from google.adk.events.event import Event
from pydantic import ConfigDict, Field, InstanceOf

from mongo_session_service._public import public
from mongo_session_service.codec import public_view
from mongo_session_service.model.metadata import Details
from mongo_session_service.model.records import SessionKey
from mongo_session_service.model.results import TurnInfo, WaitingCall

ChangeKind = Literal[
    "snapshot",
    "created",
    "appended",
    "redacted",
    "state",
    "updated",
    "deleted",
    "partial",
    "turn",
]

_CONTENT: Final = {"event", "state", "state_delta"}


@public
class Change(Details):
    """Something that happened to a session, or to state that sessions share.

    Subscribers of the same session receive the same object: do not modify its content.
    """

    model_config = ConfigDict(ser_json_bytes="base64")  # as ADK's events

    kind: ChangeKind
    app_name: str
    user_id: str | None = None
    """None for a change of an app's state."""
    session_id: str | None = None
    """None for a change of an app's or a user's state."""
    revision: int | None = None
    """The session's revision after this change; together with the session's key it
    identifies an ``appended`` change, unless the session is deleted and recreated. None
    for what belongs to no session, and for ``redacted``, ``updated``, ``deleted``."""
    event: Event | None = None
    """The event that was appended, or that was redacted, as it is now; None if it
    cannot be decoded. In a ``partial``, what is new since the one before with the
    event's id."""
    state_delta: dict[str, Any] = Field(default_factory=dict)
    """What was set, its keys prefixed by scope: by an event, by a write to the state of
    the app or user, or as the initial state of a session ``created``."""
    state: dict[str, Any] | None = None
    """The whole merged state, in a ``snapshot``."""
    labels: dict[str, str] | None = None  # type: ignore[assignment]
    """All its labels from now on, in an ``updated`` as are the other details."""
    copied_by: str | None = None
    """``fork`` or ``import``, if that has stored the event, or the session ``created``:
    an event that a fork has is counted and handled already, in the session where it was
    appended. None of what was appended or created here."""
    waiting: tuple[WaitingCall, ...] | None = None
    """The session's calls that wait for a person from now on, up to 100: of an
    ``appended`` that makes or ends a wait, of a session ``created`` with some, and of
    each ``updated``. None in other changes."""
    root_id: str | None = None
    """The id of its family, which is no session's, in ``created`` and ``updated``
    changes of a version of an edited message."""
    is_shown: bool | None = None
    """Whether it is the version that its family shows from now on, in these changes."""
    turn: InstanceOf[TurnInfo] | None = None
    """The running turn, in a ``partial`` and a ``turn``; or the last one, in a ``turn``
    by which a session's subscription begins if that was stopped, failed or cut off."""
    turn_position: int | None = None
    """The place of a ``partial`` or ``turn`` among those of its turn: a number that
    rises. None for a turn that was over when the subscription began."""
    time: float
    """Seconds since 1970: an event's timestamp, a session's creation or last update,
    for ``turn`` when it was noted, and else when MongoDB committed it."""

    @property
    def is_copy(self) -> bool:
        """Whether a fork or an import has stored it, and not an append."""
        return self.copied_by is not None

    @property
    def session_key(self) -> SessionKey | None:
        """Key of the session that changed; None for shared state."""
        if self.user_id is None or self.session_id is None:
            return None
        return SessionKey(self.app_name, self.user_id, self.session_id)

    @cached_property
    def json_text(self) -> str:
        """The change's public view as strict JSON, encoded once for all readers.

        It is what ADK's own REST server would send, whose names the fields have:
        without credentials, without the metadata that ADK keeps for itself, and without
        what is None, but for the details in an ``updated``. ``event``, ``state_delta``,
        ``state`` and ``model_dump_json()`` stay whole. The forms of values that JSON
        has no place for are in ``docs/data-model.md``.
        """
        return public_view.json_text(self._fields)

    @cached_property
    def outline_text(self) -> str:
        """``json_text`` without the event and the state, encoded once as well."""
        fields = {name: it for name, it in self._fields.items() if name not in _CONTENT}
        return public_view.json_text(fields)

    @property
    def is_withheld(self) -> bool:
        """Whether ``json_text`` leaves out a part of the change."""
        return public_view.is_withheld(self._fields)

    @property
    def _fields(self) -> dict[str, Any]:
        named = {name: getattr(self, name) for name in type(self).model_fields}
        if self.turn is not None:
            turn = self.turn._asdict()
            named["turn"] = {name: it for name, it in turn.items() if it is not None}
        kept = Details.model_fields if self.kind == "updated" else {}
        return {it: named[it] for it in named if named[it] is not None or it in kept}
