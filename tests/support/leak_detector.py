"""What tests store, and their passwords, searched for in all that is emitted.

Everything the package logs, raises, warns of, traces and measures while a test runs is
searched for every longer text that the test has put into states and events. So each
test is a test of this as well, whatever it is about.
"""

from __future__ import annotations

import functools
import logging
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event
from google.adk.sessions import Session
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

import mongo_session_service
from mongo_session_service import MongoSessionServiceError, telemetry
from support.otel_recorder import recording

PASSWORD = "canary-PaSsWoRd-9f31"  # noqa: S105  it opens nothing
"""The password in URIs."""

SECRETS = frozenset({PASSWORD, "hunter2", "s3cr3t", "secret-password"})
"""What tests call a secret; never to be emitted, by whichever test."""

PACKAGE = "mongo_session_service"
TELLING = 8
"""Characters of a text that is not emitted by chance."""
MOST = 300
"""Texts remembered of a test: those that store more store the like of these."""

OWN_WORDS = "".join(
    path.read_text()
    for path in Path(mongo_session_service.__file__).parent.rglob("*")
    if path.suffix == ".py"
)
ERRORS = (
    MongoSessionServiceError,
    AlreadyExistsError,
    SessionNotFoundError,
    StaleSessionError,
)


class Search:
    """What one test has stored, and what was emitted meanwhile."""

    def __init__(self) -> None:
        self._stored: set[str] = set()
        self._ids: set[str] = set()
        self._emitted: list[str] = []
        self._printed: list[str] = []

    def stored(self, values: object) -> None:
        """Look out for the texts in these values."""
        for text in _texts(values):
            if len(self._stored) < MOST and len(text) >= TELLING:
                self._stored.add(text)

    def named(self, *ids: object) -> None:
        """These are ids, which may be told."""
        # As plain strings: one may be of a class that cannot be hashed, or that lies.
        self._ids.update(str.__str__(each) for each in ids if isinstance(each, str))

    def emitted(self, text: str) -> None:
        """This was logged, raised, traced or the like."""
        self._emitted.append(text)

    def printed(self, text: str) -> None:
        """A command has printed this, which may show sessions, but no password."""
        self._printed.append(text)

    def leaks(self) -> list[str]:
        """What of it should not have been."""
        emitted = "\n".join(self._emitted)
        found = [
            each
            for each in SECRETS | self._stored
            if each in emitted and not self._may_be_told(each)
        ]
        return [
            f"{each!r} in {text!r}"
            for text in self._emitted
            for each in found
            if each in text
        ] + [
            f"{each!r} in {text!r}"
            for text in self._printed
            for each in SECRETS
            if each in text
        ]

    def _may_be_told(self, text: str) -> bool:
        """Tell whether it is in the code, or in an id."""
        is_known = text in OWN_WORDS or any(text in each for each in self._ids)
        return is_known and text not in SECRETS


def _texts(value: object) -> Iterator[str]:
    left = [value]  # which may be nested too deeply for calls
    while left:
        each = left.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each


def _said(event: Event) -> Iterator[object]:
    yield dict(event.actions.state_delta)
    for part in (event.content.parts if event.content else None) or ():
        yield part.text
        yield part.function_call and part.function_call.args
        yield part.function_response and part.function_response.response


current = Search()


def begin() -> Search:
    global current  # noqa: PLW0603  whatever emits has to find it
    current = Search()
    return current


class _Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        current.emitted(self.format(record))


class _Traced(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        scope = span.instrumentation_scope
        if scope and scope.name == PACKAGE:
            # All that somebody has chosen; to_json() takes ten times as long.
            names = [span.name, *(each.name for each in span.events)]
            told = [span, *span.events, *span.links]
            attributes = [dict(each.attributes or {}) for each in told]
            current.emitted(f"{names} {span.status.description} {attributes}")


def chain(error: BaseException | None) -> str:
    """All that a traceback would show of an error, but for the code."""
    if error is None:
        return ""
    shown = "".join(traceback.format_exception_only(error))
    before = None if error.__suppress_context__ else error.__context__
    return shown + chain(error.__cause__ or before)


def watch_everything() -> None:
    """Have all that this process emits searched."""
    logging.getLogger(PACKAGE).addHandler(_Logged())
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(PACKAGE):
            _overhear(logging.getLogger(name))
    recording()
    trace.get_tracer_provider().add_span_processor(_Traced())  # type: ignore[attr-defined]
    _overhear_errors()
    _overhear_calls()


def _overhear(logger: logging.Logger) -> None:
    """Search what is too quiet for a handler, too."""
    for level in ("debug", "info"):
        log = getattr(logger, level)

        def tell(text: str, *args: object, _log: Any = log, **options: Any) -> None:
            current.emitted(text % args)
            _log(text, *args, **options)

        setattr(logger, level, tell)


def _overhear_errors() -> None:
    make = MongoSessionServiceError.__init__

    @functools.wraps(make)
    def made(self: MongoSessionServiceError, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        current.emitted(str(self))

    MongoSessionServiceError.__init__ = made  # type: ignore[method-assign]


def _overhear_calls() -> None:
    """Note what calls of the service store, and what they raise, where it is traced."""
    found, leave = telemetry._app_and_session, telemetry.Operation.__exit__  # noqa: SLF001

    def noting(args: tuple[object, ...], kwargs: dict[str, Any]) -> Any:
        current.named(*(kwargs.get(name) for name in ("user_id", "session_id")))
        current.named(*found(args, kwargs))
        current.stored(kwargs.get("state"))
        for each in (*args, *kwargs.values()):
            if isinstance(each, Event):
                current.named(each.id, each.author)
                with suppress(AttributeError, TypeError, ValueError):
                    current.stored(list(_said(each)))  # unless it is mistyped
            elif isinstance(each, Session):
                current.named(each.id, each.user_id)
        return found(args, kwargs)

    def leaving(
        self: telemetry.Operation,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if isinstance(error, ERRORS):
            current.emitted(chain(error))
        leave(self, kind, error, where)

    telemetry._app_and_session = noting  # type: ignore[assignment]  # noqa: SLF001
    telemetry.Operation.__exit__ = leaving  # type: ignore[method-assign]


def warned(warning: warnings.WarningMessage) -> None:
    current.emitted(str(warning.message))
