"""Family record: the versions of a conversation, whose document other rooms read here.

To edit a message of a session makes a branch. The session, its branches and theirs are
a family, with one document in ``families``:

- ``_id``: app, user, and ``family``: an id of its own, which its sessions name.
- ``create_time``: of its first session; the order in lists, whichever is shown.
- ``shown``: the id of the session that is shown.
- ``title``, ``labels``: of the conversation; no session of it has its own.
- ``members``: the sessions in the order in which they were added, each with its ``id``,
  when it was ``created``, and unless it is the first, its ``parent`` (an index of this
  list), the parent's invocation ``before`` which it parts, and the ``revision`` up to
  which both are the same. One that is removed stays, as ``gone``: its place is needed
  by what was made of it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from pydantic import BaseModel, Field, SkipValidation, ValidationError

from mongo_session_service.codec.bson_values import UnreadableError
from mongo_session_service.codec.record import Origin, SessionRecord
from mongo_session_service.model.metadata import CONVERSATION
from mongo_session_service.model.records import Document, FamilyKey

_FIELDS: Final[tuple[str, ...]] = ("create_time", "shown", *CONVERSATION, "members")

_Path: TypeAlias = "tuple[int, int, _Path | None]"


class Member(NamedTuple):
    """A session of a family, also one that is gone; by the names of stored fields."""

    id: str
    created: float
    parent: SkipValidation[int | None] = None
    before: str | None = None
    revision: int = 0
    repeats: bool = False
    gone: bool = False

    @property
    def origin(self) -> Origin:
        return self.id, self.created

    def to_document(self) -> Document:
        fields = self._asdict().items()
        return {name: it for name, it in fields if it is not None and it is not False}


class _Whole(BaseModel, strict=True):
    """What a family has that no other tool has damaged, by the names of its fields."""

    key: FamilyKey = Field(alias="_id")
    create_time: float
    shown: str
    title: str | None = None
    labels: list[dict[str, str]] | None = None
    members: list[Member] = Field(min_length=1)


class FamilyRecord:
    """A stored family; frozen."""

    __slots__ = ("document", "key", "members", "shown")

    def __init__(self, document: Document) -> None:
        """Take a document apart; one that another tool has damaged is refused."""
        try:
            whole = _Whole.model_validate(document)
        except ValidationError:  # it quotes what is stored
            raise UnreadableError("A family of versions") from None
        self.document = document
        self.key, self.shown, self.members = whole.key, whole.shown, whole.members
        for place, each in enumerate(self.members):
            # Made of an earlier one, or of none: there is no circle, whoever wrote it.
            is_made = type(each.parent) is int and 0 <= each.parent < place
            self.members[place] = each if is_made else each._replace(parent=None)

    @classmethod
    def of_json(cls, fields: Document) -> FamilyRecord:
        """Of a line of an export: the document, with the fields of its ``_id``."""
        id_ = {name: fields.get(name) for name in FamilyKey._fields}
        known = {name: fields[name] for name in _FIELDS if name in fields}
        return cls({"_id": id_, **known})

    def to_json(self) -> Document:
        fields = self.document
        return self.key.id | {it: fields[it] for it in _FIELDS if it in fields}

    @classmethod
    def begin(cls, key: FamilyKey, first: SessionRecord) -> FamilyRecord:
        """Of a session that becomes the first of a family."""
        own = {"create_time": first.created, "shown": first.key.session_id}
        known = {name: it for name, it in first.conversation.items() if it is not None}
        member = Member(*first.origin).to_document()
        return cls({"_id": key.id, **own, **known, "members": [member]})

    @property
    def left(self) -> list[Member]:
        return [each for each in self.members if not each.gone]

    def joined(self, session: SessionRecord) -> SessionRecord:
        """A session of it, with what it has of the family."""
        fields = {name: self.document.get(name) for name in CONVERSATION}
        fields |= {"versions": len(self.left)}
        is_hidden = self.shown != session.key.session_id
        return session.replaced({**fields, "hidden": is_hidden or None})

    def shown_of(self, there: Container[Origin]) -> str | None:
        """Which of some sessions it shows; None if there is none.

        If the one that it shows is not among them, it is its parent, or the newest.
        """
        left = [each.id for each in self.left if each.origin in there]
        shown = [it for it in self.members if it.id == self.shown]
        wanted = [self.shown, *map(self.parent_id, shown), *reversed(left)]
        return next((each for each in wanted if each in left), None)

    def parent_id(self, member: Member) -> str | None:
        """The session that a branch was made of; None for the first."""
        place = member.parent
        return None if place is None else self.members[place].id

    def changed(self, members: Iterable[Member], shown: str) -> FamilyRecord:
        listed = [each.to_document() for each in members]
        return FamilyRecord({**self.document, "members": listed, "shown": shown})

    def merged_with(
        self,
        stored: FamilyRecord | None,
        there: Container[Origin],
        new: Container[Origin],
    ) -> FamilyRecord:
        """What is stored of it, with those members of it that are there.

        What is shown stays so, unless it is new what it shows itself.
        """
        members = {each.origin: each for each in stored.members} if stored else {}
        for each in self.members:
            parent = None
            if each.parent is not None:
                parent = [*members].index(self.members[each.parent].origin)
            known = members.get(each.origin, each._replace(parent=parent, gone=True))
            is_gone = known.gone and each.origin not in there
            members[each.origin] = known._replace(gone=is_gone)
        is_new = any(
            each.id == self.shown and each.origin in new for each in self.members
        )
        shown = stored.shown if stored and not is_new else self.shown
        both = (stored or self).changed(members.values(), shown)
        left = {each.origin for each in both.left}
        return both.changed(members.values(), both.shown_of(left) or shown)

    def versions(self, there: Container[Origin]) -> Iterator[tuple[Member, str | None]]:
        """Yield the members that are there, and of which each has another version.

        What was between the two may be gone: it is the first one that has the same
        events before, and the ``revision`` is the last that both have.
        """
        # Of each, by how many events it shares with what it was made of, and that with
        # what it was made of, and so on: the first that shares so many.
        paths: list[_Path | None] = []
        shared: list[int] = []  # with the nearest that is there
        for each in self.members:
            path, least = None, 0
            if each.parent is not None:
                above, first = self.members[each.parent], each.parent
                path, least = paths[each.parent], each.revision
                while path and path[0] >= each.revision:
                    _, first, path = path
                path = (each.revision, first, path)
                if above.parent is not None and above.origin not in there:
                    least = min(least, shared[each.parent])
            paths.append(path)
            shared.append(least)
            if each.origin in there:
                while path and path[0] > least:
                    path = path[2]
                first_id = self.members[path[1]].id if path else None
                yield each._replace(revision=least), first_id

    def shared_with(self, session: Origin) -> dict[Origin, float]:
        """How many events a session has in common with each other, gone or not.

        One that is repeated counts.
        """
        near: dict[Origin, list[tuple[Origin, int]]] = {}
        for each in self.members:
            near[each.origin] = []
            if each.parent is not None:
                above, held = self.members[each.parent], each.revision + each.repeats
                near[each.origin].append((above.origin, held))
                near[above.origin].append((each.origin, held))
        shared: dict[Origin, float] = {session: math.inf}
        left = [session]
        while left:
            origin = left.pop()
            for other, held in near.get(origin, ()):
                if other not in shared:
                    shared[other] = min(shared[origin], held)
                    left.append(other)
        return shared
