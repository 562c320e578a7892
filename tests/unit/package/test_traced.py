"""Which of the service's methods are traced."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

from google.adk.sessions import BaseSessionService

from mongo_session_service import MongoSessionService, telemetry

UNTRACED = {
    "flush": "does nothing",
    "close": "asks the server for nothing",
    "start_turn": "goes on when it returns; its turn and its calls are traced",
    "recover_turns": "never returns; the calls that it makes are traced",
}


def public_coroutines() -> dict[str, Any]:
    return {
        name: method
        for name, method in inspect.getmembers(
            MongoSessionService, inspect.iscoroutinefunction
        )
        if not name.startswith("_")
    }


def test_every_public_call_is_traced() -> None:
    """A coroutine method of the service has a span, or a reason to have none."""
    untraced = {
        name
        for name, method in public_coroutines().items()
        if method.__code__.co_filename != telemetry.__file__
    }

    assert untraced == set(UNTRACED), "put @traced of telemetry.py above it"


def test_every_public_iteration_is_traced() -> None:
    """An iterator of the service has a span for each page that it reads."""
    for name, method in inspect.getmembers(MongoSessionService):
        if inspect.isasyncgenfunction(method) and not name.startswith("_"):
            assert "with Operation(" in inspect.getsource(method), name


def test_tracing_hides_no_signature() -> None:
    """A traced method keeps its name, documentation and parameters."""
    for name, method in public_coroutines().items():
        assert getattr(method, "__name__", "") == name
        assert inspect.getdoc(method)
        of_adk = getattr(BaseSessionService, name, None)
        if of_adk is not None:
            expected = list(inspect.signature(of_adk).parameters)
            assert (
                list(inspect.signature(method).parameters)[: len(expected)] == expected
            )


WITHOUT_AND_WITH_SDK = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from mongo_session_service.telemetry import has_sdk

before = has_sdk(), hasattr(trace, "_TRACER_PROVIDER")
trace.set_tracer_provider(TracerProvider())
print(before, has_sdk())
"""


def test_calls_are_traced_from_the_time_an_sdk_is_there() -> None:
    """Without an SDK nothing is recorded; one may be set up after the import."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT_AND_WITH_SDK],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "(False, True) True"
