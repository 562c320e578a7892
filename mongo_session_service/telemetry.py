"""Telemetry: spans and metrics of the service's calls, in OpenTelemetry's conventions.

The application's SDK exports them; it may be set up after this package is imported.
Without an SDK, a method's call has neither. They name the database, the call, the
app and the type of an error, but no user and no content. Spans name the session, too,
as those of ADK do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextvars import Token
from functools import wraps
from time import perf_counter
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar
from weakref import WeakValueDictionary

from google.adk.sessions.session import Session
from opentelemetry import context, metrics, trace
from opentelemetry.metrics import Counter, Histogram, Observation, get_meter

from mongo_session_service._version import __version__

NAME: Final = "mongo_session_service"
DATABASE: Final = "db.namespace"
_SYSTEM: Final = "db.system.name"
_OPERATION: Final = "db.operation.name"
_ERROR: Final = "error.type"
_APP: Final = f"{NAME}.app_name"
_SESSION: Final = "gen_ai.conversation.id"
_BATCH: Final = f"{NAME}.batch.size"
_EPOCH: Final = f"{NAME}.turn.epoch"
_STATUS: Final = f"{NAME}.turn.status"

_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10)
_WRITES: Final = (1, 2, 4, 8, 16, 32, 64, 128)
_TURN_SECONDS: Final = (0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900)

_tracer: Final = trace.get_tracer(NAME, __version__)
meter: Final = get_meter(NAME, __version__)

_duration: Final = meter.create_histogram(
    "db.client.operation.duration",
    "s",
    "Duration of the service's calls",
    explicit_bucket_boundaries_advisory=_SECONDS,
)
BATCH_SIZES: Final = meter.create_histogram(
    f"{NAME}.commit.batch_size",
    "{write}",
    "Appends and new sessions that were committed together",
    explicit_bucket_boundaries_advisory=_WRITES,
)
RETRIES: Final = meter.create_counter(
    f"{NAME}.transaction.retries", "{retry}", "Transactions that were retried"
)
CONFLICTS: Final = meter.create_counter(
    f"{NAME}.transaction.conflicts",
    "{conflict}",
    "Writes in transactions that conflicted with another write",
)
STALE_APPENDS: Final = meter.create_counter(
    f"{NAME}.append.stale",
    "{append}",
    "Appends to a session that had changed in storage",
)
_running: Final = meter.create_up_down_counter(
    f"{NAME}.turn.running", "{turn}", "Turns in which an agent runs"
)
_turn_duration: Final = meter.create_histogram(
    f"{NAME}.turn.duration",
    "s",
    "Duration of turns in which an agent ran",
    explicit_bucket_boundaries_advisory=_TURN_SECONDS,
)
PARTIAL_SIZES: Final = meter.create_histogram(
    f"{NAME}.partial.write_size",
    "{partial}",
    "Partials of running turns that were written together",
    explicit_bucket_boundaries_advisory=_WRITES,
)

_Member = TypeVar("_Member")


class Living(Generic[_Member]):
    """Objects as long as they live, which other threads may list or add to meanwhile.

    A ``WeakSet`` fails if it grows while it is listed.
    """

    def __init__(self) -> None:
        self._by_id = WeakValueDictionary[int, _Member]()

    def add(self, member: _Member) -> None:
        self._by_id[id(member)] = member

    def discard(self, member: _Member) -> None:
        self._by_id.pop(id(member), None)

    def __iter__(self) -> Iterator[_Member]:
        members = [reference() for reference in self._by_id.valuerefs()]
        return iter([each for each in members if each is not None])


ABANDONED_TURNS: Final = defaultdict[str, int](int)
"""Of each database, how many were closed here."""
_exported: Final[set[str]] = set()


def _report_abandoned(_: object) -> Iterable[Observation]:
    """Report 0 first: what a new process counts at once is an increase as well."""
    for database, number in list(ABANDONED_TURNS.items()):
        value = number if database in _exported else 0
        yield Observation(value, {DATABASE: database})
        _exported.add(database)


meter.create_observable_counter(
    f"{NAME}.turn.abandoned",
    [_report_abandoned],
    "{turn}",
    "Turns of dead processes whose open calls were answered here",
)

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_Method = Callable[_Arguments, Coroutine[Any, Any, _Result]]


_metrics: Final = getattr(metrics, "_internal", None)


def has_sdk() -> bool:
    """Whether the application has set up traces or metrics."""
    # The public functions look into the environment, which takes 12 times as long. In a
    # release without these names, a call costs what it costs with an SDK.
    return (
        getattr(trace, "_TRACER_PROVIDER", True) is not None
        or getattr(_metrics, "_METER_PROVIDER", True) is not None
    )


def traced(method: _Method[_Arguments, _Result]) -> _Method[_Arguments, _Result]:
    """Trace each call of a service's method as an :class:`Operation`."""
    name = method.__name__

    @wraps(method)
    async def operating(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        if not has_sdk():
            return await method(*args, **kwargs)
        service: Any = args[0]
        named = _app_and_session(args, kwargs)
        with Operation(name, service.database_name, *named):
            result = await method(*args, **kwargs)
            # Which may have given the session its id.
            if isinstance(result, Session) and name == "create_session":
                trace.get_current_span().set_attribute(_SESSION, result.id)
            return result

    return operating


def _app_and_session(
    args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[object, object]:
    """The app and the session's id that a call names, if any."""
    if "app_name" in kwargs:
        return kwargs["app_name"], kwargs.get("session_id")
    for each in (*args, *kwargs.values()):
        if isinstance(each, Session):
            return each.app_name, each.id
    return None, None


class Operation:
    """A span below the caller's, and an observation in the latency histogram.

    A generator is not one operation, since its caller's time is not the store's; each
    page that it reads is one.
    """

    __slots__ = ("_labels", "_span", "_started", "_token")

    def __init__(
        self, name: str, database: str, app_name: object, session_id: object = None
    ) -> None:
        self._labels = {_SYSTEM: "mongodb", DATABASE: database, _OPERATION: name}
        self._token: Token[context.Context] | None = None
        self._started = perf_counter()
        named = {_APP: app_name, _SESSION: session_id}
        known = {key: it for key, it in named.items() if isinstance(it, str)}
        self._span = _tracer.start_span(
            f"{name} {database}",
            kind=trace.SpanKind.CLIENT,
            attributes=self._labels | known,
        )

    def __enter__(self) -> Self:
        # Without an SDK the span is invalid, and need not be made current.
        if self._span.get_span_context().is_valid:
            self._token = context.attach(trace.set_span_in_context(self._span))
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is not None:
            # Only the type: its text may name a session or an event.
            self._labels[_ERROR] = exc_type.__qualname__
            self._span.set_attribute(_ERROR, exc_type.__qualname__)
            self._span.set_status(trace.StatusCode.ERROR)
        if self._token is not None:
            context.detach(self._token)
        self._span.end()
        _duration.record(perf_counter() - self._started, self._labels)


class TurnSpan:
    """A span in which an agent runs, and its part of the metrics of turns."""

    def __init__(
        self, database: str, app_name: str, session_id: str, epoch: int
    ) -> None:
        self.status = "ended"
        self.error_type: str | None = None
        self._labels = {DATABASE: database}
        self._started = perf_counter()
        named = {DATABASE: database, _APP: app_name, _SESSION: session_id}
        self._span = _tracer.start_span(
            f"running_turn {database}", attributes={**named, _EPOCH: epoch}
        )

    def __enter__(self) -> Self:
        self._token = context.attach(trace.set_span_in_context(self._span))
        _running.add(1, self._labels)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        _running.add(-1, self._labels)
        ended = {_STATUS: self.status}
        if error := self.error_type if exc_type is None else exc_type.__qualname__:
            ended[_ERROR] = error
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.set_attributes(ended)
        context.detach(self._token)
        self._span.end()
        _turn_duration.record(perf_counter() - self._started, self._labels | ended)


def note_batch(writes: int) -> None:
    """Note on the current span how many writes were committed with its own."""
    if has_sdk():
        trace.get_current_span().set_attribute(_BATCH, writes)


def count(counter: Counter, database: str) -> None:
    counter.add(1, {DATABASE: database})


def record_size(sizes: Histogram, database: str, size: int) -> None:
    sizes.record(size, {DATABASE: database})
