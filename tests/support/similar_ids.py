"""Sessions whose ids are easily taken for one another, and what each may show.

Everyone has the same title, the same labels and the same keys. Only the mark in each
value tells whose it is: of a session, a user or an app.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain, product
from typing import Any

from google.adk.events import Event, EventActions
from google.adk.sessions import Session

from mongo_session_service import MongoSessionService, Subscription

Owner = tuple[str, ...]
"""A session's key, or as much of it as names a user or an app."""

NAMES = ("app_name", "user_id", "session_id")
TITLE = "everyone's"
LABELS = {"of": "everyone"}
WHERE = {"kind": "look-alike"}
FIRST = "first"
"""The id of each session's first event."""

_LONGEST = "x" * 4096


def _shifted() -> Iterator[Owner]:
    """What would be the same if parts were joined."""
    for separator in ("/", ":", ".", "\0", ""):
        yield f"a{separator}b", "c", "d"
        yield "a", f"b{separator}c", "d"
        yield "a", "b", f"c{separator}d"


def _at_each_level(*lookalikes: str) -> Iterator[Owner]:
    for each in lookalikes:
        yield each, "a", "a"
        yield "a", each, "a"
        yield "a", "a", each.strip()


KEYS: Sequence[Owner] = tuple(
    dict.fromkeys(
        chain(
            [("a", "a", "a"), ("a", "b", "c"), ("ab", "ab", "ab")],
            _shifted(),
            _at_each_level("ab", "A", "\N{FULLWIDTH LATIN SMALL LETTER A}"),
            _at_each_level("a\N{ZERO WIDTH SPACE}", "$a", "\U0010ffff"),
            _at_each_level("\N{LATIN SMALL LETTER E WITH ACUTE}"),
            _at_each_level("e\N{COMBINING ACUTE ACCENT}", _LONGEST),
            [(" a", "a", "a"), ("a", "a ", "a"), ("a", "a", "a b")],
            [("1", "1", "1"), ("1.0", "1", "1"), ("1", "01", "1"), ("1", "1", "+1")],
            [("None", "null", "true"), ("null", "None", "true"), ("a", "b", "\ufeffa")],
            [("$gt", "$ne", "$in"), ("$gt", "$ne", "$gt"), (".*", "^a", "a$")],
            [("a", '{"$ne": null}', '{"$gt": ""}'), ("a", "{}", "[]")],
            [("{'app_name': 'a', 'user_id': 'a'}", "a", "a")],
            [("a", "{'app_name': 'a', 'user_id': 'a'}", "{'session_id': 'a'}")],
            [("a", "a", "removed"), ("a", "a", "revision"), ("a", "a", "0")],
            [("app:a", "user:a", "a"), ("a", "user:a", "a"), ("page_tokens",) * 3],
            [("a", "a", "../b"), ("a", "a", "%61"), ("a", "a", _LONGEST[1:] + "y")],
        )
    )
)


def strangers() -> set[Owner]:
    """Keys that are like some of ``KEYS``, and name nothing."""
    near = {
        part: {part.upper(), part[:-1], part[:4095] + " "}
        | {unicodedata.normalize(form, part) for form in ("NFD", "NFKC")}
        for part in chain(*KEYS)
    }
    found = {
        (*key[:level], other, *key[level + 1 :])
        for key, level in product(KEYS, range(3))
        for other in near[key[level]]
        if other and (level < 2 or other == other.strip())
    }
    return found - set(KEYS)


def named(owner: Owner) -> dict[str, str]:
    """The arguments that name an owner."""
    return dict(zip(NAMES, owner, strict=False))


def is_within(owner: Owner, scope: Owner) -> bool:
    """Whether it is the scope itself, or belongs to it."""
    return owner[: len(scope)] == scope


def marks_in(value: object) -> set[str]:
    return set(re.findall(r"<\d+-\d+>", repr(value)))


async def seen(result: Any) -> Any:
    """What a call has to show."""
    if inspect.isawaitable(result):
        return await result
    if isinstance(result, Subscription):
        async with result as changes:
            return [await anext(changes)]
    return [each async for each in result]


class Crowd:
    """Look-alikes in one place: a database and a prefix."""

    def __init__(
        self, service: MongoSessionService, keys: Sequence[Owner] = KEYS, place: int = 0
    ) -> None:
        self.service = service
        self.keys = keys
        self.owners = sorted({key[:size] for key in keys for size in (1, 2, 3)})
        self._marks = {
            owner: f"<{place}-{number}>" for number, owner in enumerate(self.owners)
        }

    @property
    def apps(self) -> list[Owner]:
        return [each for each in self.owners if len(each) == 1]

    @property
    def users(self) -> list[Owner]:
        return [each for each in self.owners if len(each) == 2]

    def sessions_of(self, scope: Owner) -> list[Owner]:
        """The keys of a user's or an app's sessions."""
        return [key for key in self.keys if is_within(key, scope)]

    def mark(self, owner: Owner) -> str:
        """What tells its values from all others."""
        return self._marks[owner]

    def marks_of(self, scope: Owner) -> set[str]:
        """What who reads a scope is to see: its own, and the state that it shares."""
        return {
            mark
            for owner, mark in self._marks.items()
            if is_within(owner, scope) or is_within(scope, owner)
        }

    def state(self, key: Owner) -> dict[str, Any]:
        """A state or delta with something in each scope."""
        app, user = self._marks[key[:1]], self._marks[key[:2]]
        return {**WHERE, "m": self._marks[key], "user:m": user, "app:m": app}

    def event(self, key: Owner, **delta: Any) -> Event:
        """An event that says whose it is."""
        actions = EventActions(state_delta=delta or self.state(key))
        return Event(author=self._marks[key], actions=actions)

    async def loaded(self) -> list[Session]:
        """Every session, as it is stored."""
        found = await asyncio.gather(
            *(self.service.get_session(**named(key)) for key in self.keys)
        )
        return [each for each in found if each is not None]

    async def populate(self, scope: Owner = ()) -> None:
        """Create those that belong to a scope, each with an event."""

        async def one(key: Owner) -> None:
            session = await self.service.create_session(
                **named(key), state=self.state(key), title=TITLE, labels=LABELS
            )
            event = self.event(key).model_copy(update={"id": FIRST})
            await self.service.append_event(session, event)

        await asyncio.gather(*map(one, self.sessions_of(scope)))
