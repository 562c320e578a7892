"""The search for what must not be emitted does find it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import pytest
from google.adk.events import Event, EventActions
from google.adk.sessions import Session
from google.genai import types
from support import leak_detector

from mongo_session_service import InvalidInputError, MongoSessionService, telemetry
from mongo_session_service.service import backends_of

STORED = "what Ada said in confidence"


def log_quietly() -> None:
    logging.getLogger("mongo_session_service.storage.stream").debug("%s", STORED)


def log() -> None:
    error = KeyError(STORED)
    logging.getLogger("mongo_session_service.sessions.reads").error(
        "Failed.", exc_info=error
    )


def fail() -> None:
    InvalidInputError(f"State 'k' cannot be {STORED!r}.")


def chain_another() -> None:
    error = InvalidInputError("Not this.")
    error.__cause__ = ValueError(STORED)
    leak_detector.current.emitted(leak_detector.chain(error))


def warn() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(STORED, stacklevel=1)
    leak_detector.warned(caught[0])


def trace() -> None:
    with telemetry.Operation(STORED, "db", None):
        pass


@pytest.mark.parametrize("emit", [log_quietly, log, fail, chain_another, warn, trace])
async def test_the_leak_detector_finds_stored_values_in_all_output(
    emit: Callable[[], None],
) -> None:
    """A state value or an event's text is found wherever it may turn up."""
    for name in ("state", "delta", "text"):
        search = leak_detector.begin()
        await use(name)
        assert search.leaks() == []

        emit()

        assert len(search.leaks()) >= 1
    leak_detector.begin()


async def use(name: str) -> None:
    """Call a service that refuses for another reason; what it was given counts."""
    service = MongoSessionService("mongodb://127.0.0.1/")
    content = types.Content(parts=[types.Part(text=STORED)])
    actions = EventActions(state_delta={"k": [STORED]})
    event = {
        "delta": Event(author="x", actions=actions),
        "text": Event(author="x", content=content),
    }
    if name == "state":
        with pytest.raises(InvalidInputError):
            await service.create_session(app_name="", user_id="", state={"k": STORED})
    else:
        session = Session(id="", app_name="", user_id="")
        with pytest.raises(InvalidInputError):
            await service.append_event(session, event[name])


@pytest.mark.parametrize("secret", sorted(leak_detector.SECRETS))
def test_a_password_is_found_in_what_a_command_prints(secret: str) -> None:
    """A command may show what is stored, but no test's password."""
    search = leak_detector.Search()
    search.stored(STORED)

    search.printed(STORED)
    assert search.leaks() == []

    search.printed(f"mongodb://ada:{secret}@h/")
    assert len(search.leaks()) == 1


def test_nothing_shows_a_password_when_it_is_looked_at() -> None:
    """A service, and what it gives out, can be printed."""
    service = MongoSessionService(f"mongodb://ada:{leak_detector.PASSWORD}@127.0.0.1/")
    looked_at = [
        *(service, *vars(service).values()),
        *vars(backends_of(service)).values(),
        *(service.watch("a"), service.consumer("c"), service.feed_stats()),
    ]
    shown = [repr(each) for each in looked_at if not isinstance(each, str)]

    assert not [each for each in shown if leak_detector.PASSWORD in each]
