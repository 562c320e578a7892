"""Every public method, called with what should never have come its way.

``FUZZ_EXAMPLES=2000 scripts/test -k hostile_calls`` tries more.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.sessions import Session
from hypothesis import given
from hypothesis import strategies as st
from pymongo import AsyncMongoClient, MongoClient
from support.attack_surface import SESAME, Besieged, OperatorsSent, changed
from support.hostile_values import (
    BANG,
    VALUES,
    Grenade,
    fuzzing,
    methods,
    parameters,
    usual,
)
from support.patience import PATIENCE

from mongo_session_service import (
    Consumer,
    DocumentTooLargeError,
    InvalidInputError,
    MongoSessionService,
    Subscription,
)

METHODS = dict(methods())
DOCUMENTED = (
    InvalidInputError,
    DocumentTooLargeError,
    AlreadyExistsError,
    SessionNotFoundError,
    StaleSessionError,
    TimeoutError,  # of wait_for
)
"""A refusal by the server is none of them: it should never have been asked."""


@pytest.fixture
def listener() -> OperatorsSent:
    return OperatorsSent()


@pytest.fixture
async def besieged(
    mongodb_uri: str, database: str, admin: MongoClient, listener: OperatorsSent
) -> AsyncIterator[Besieged]:
    """A service whose commands are overheard, with others' sessions in its database."""
    async with (
        AsyncMongoClient(mongodb_uri, event_listeners=[listener]) as client,
        MongoSessionService(client=client, database=database) as service,
    ):
        besieged = Besieged(service, admin)
        await besieged.populate()
        yield besieged


@pytest.mark.parametrize("name", METHODS)
@fuzzing
@given(data=st.data())
async def test_hostile_calls_are_refused_or_concern_their_own(
    besieged: Besieged, listener: OperatorsSent, name: str, data: st.DataObject
) -> None:
    """A documented error that changes nothing, or an effect on what was named."""
    method = METHODS[name]
    hostile = data.draw(st.sampled_from([each.name for each in parameters(method)]))
    value = data.draw(VALUES[hostile])
    arguments = await usual_arguments(besieged, method) | {hostile: value}
    before = besieged.stored()
    listener.commands.clear()

    answer = await called(besieged.service, name, arguments)

    assert not listener.foreign_operators()
    after = besieged.stored()
    changes = set(changed(before, after))
    if isinstance(answer, Exception):
        assert isinstance(answer, DOCUMENTED), repr(answer)
        told = f"{answer} {answer.__cause__}"
        assert len(told) < 500
        assert not any(secret in told for secret in (BANG, SESAME))
        assert changes == set()
    else:
        named = Named.by(arguments)
        known = set(besieged.sessions(before))
        assert {each for each in changes if not named.covers(*each, known)} == set()
        assert named.is_wide or SESAME not in answer
        for owner in besieged.sessions(after, at=time.time()):
            if ("sessions", owner) in changes:
                await besieged.read_all(owner)


class Named(NamedTuple):
    """Whose documents a call may see and change."""

    app: str | None
    user: str | None
    sessions: frozenset[str] | None
    """None for all of the user's."""

    @classmethod
    def by(cls, arguments: dict[str, Any]) -> Named:
        """What the arguments say, as plain strings."""
        of_session = {"app_name": "app_name", "user_id": "user_id", "session_id": "id"}
        if "session" in arguments:
            session = arguments["session"]
            arguments = {
                name: getattr(session, field, None)
                for name, field in of_session.items()
            }
        texts = {
            name: str.__str__(value).strip()
            for name, value in arguments.items()
            if isinstance(value, str)
        }
        ids = {texts[name] for name in texts if name.endswith("session_id")}
        app, user = arguments.get("app_name"), arguments.get("user_id")
        if "runner" in arguments:
            app = getattr(arguments["runner"], "app_name", None)
        return cls(
            None if app is None else str.__str__(app),
            None if user is None else str.__str__(user),
            frozenset(ids) if ids - {""} else None,
        )

    @property
    def is_wide(self) -> bool:
        """Whether it is not a single user's."""
        return self.app is None or self.user is None

    def covers(
        self, collection: str, owner: tuple[str, ...], known: set[tuple[str, ...]]
    ) -> bool:
        """Whether a document is theirs, a consumer's, or of a session that is new."""
        if collection in {"checkpoints", "leases", "dead_letters"}:
            return True
        app, user, id_ = (*owner, None, None)[:3]
        return (
            app == self.app
            and user in {None, self.user}
            and (
                self.sessions is None
                or id_ in {None, *self.sessions}
                or owner not in known
            )
        )


async def usual_arguments(
    besieged: Besieged, method: Callable[..., object]
) -> dict[str, Any]:
    """What a method needs, and nothing else, about the caller's own session."""
    session = await besieged.own_session()
    needed = {
        each.name: usual(each.name)
        for each in parameters(method)
        if each.default is each.empty or usual(each.name) is not None
    }
    return needed | ({"session": session} if "session" in needed else {})


async def called(
    service: MongoSessionService, name: str, arguments: dict[str, Any]
) -> Exception | str:
    """What comes of a call: the error it raises, or what was read."""
    kind, method = name.split(".")
    try:
        patience = 0.2 if method == "recover_turns" else PATIENCE  # or it never ends
        async with asyncio.timeout(patience), AsyncExitStack() as leaving:
            owner: Any = service
            if kind == "Consumer":
                owner = service.consumer("fuzzed", app_name="app")
                # It would run for ever.
                soon = asyncio.create_task(after_a_while(owner.close))
                leaving.push_async_callback(asyncio.wait, [soon])
            with Grenade.armed():
                return await seen(getattr(owner, method)(**arguments))
    except Exception as error:  # noqa: BLE001  to be looked at
        return error


async def after_a_while(call: Callable[[], Awaitable[None]]) -> None:
    await asyncio.sleep(0.05)
    await call()


async def seen(result: Any) -> str:
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, Subscription):
        async with result as changes:
            is_session = changes.scope.is_session
            result = [await anext(changes)] if is_session else []
    elif isinstance(result, Consumer):
        async with result:
            result = []
    elif hasattr(result, "__aenter__"):  # a turn
        async with result as session:
            result = session
    elif hasattr(result, "__aiter__"):
        result = [each async for each in result]
    # What was created still holds what was passed, so it is no text perhaps.
    return "" if isinstance(result, Session | Event) else repr(result)
