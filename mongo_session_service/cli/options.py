"""Options that commands share, and the types of values on the command line.

Options stand after the name of a command. A type is a function that parses a text, and
raises ``BadParameter`` with what is wrong: click shows it beside the option's name.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, Self, TypeVar
from urllib.parse import quote

import click
from typing_extensions import override

from mongo_session_service.cli import terminal
from mongo_session_service.cli.terminal import (
    DEBUG_HINT,
    SharedOptions,
    printable,
    shared_options,
)

if TYPE_CHECKING:
    from mongo_session_service.codec.hooks import Hook
    from mongo_session_service.model.records import SessionKey
    from mongo_session_service.service import MongoSessionService
    from mongo_session_service.transfer import Selection

Command = TypeVar("Command", bound=Callable[..., Any])

ANSWER_LIMIT: Final = 5.0
"""Seconds for MongoDB to answer at first, unless the URI sets a time of its own."""

_SECONDS_OF: Final = {"s": 1, "h": 3600, "d": 86400}


def parse_time(text: str) -> float:
    """Parse seconds since 1970, or ISO 8601, in UTC unless it names a zone."""
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(float(text), UTC).timestamp()
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    raise click.BadParameter(f"{text!r} is not a time such as 2026-11-21T04:00:00Z.")


def parse_past_time(text: str) -> float:
    seconds = parse_time(text)
    if not 0 < seconds <= time.time():
        raise click.BadParameter(f"{text!r} is not in the past, after 1970.")
    return seconds


def parse_future_time(text: str) -> float:
    seconds = parse_time(text)
    if seconds <= time.time():
        raise click.BadParameter(f"{text!r} is not in the future.")
    return seconds


def parse_duration(text: str) -> float:
    """Parse a number with a unit, at most 100 years; return its seconds."""
    from mongo_session_service.model.metadata import MAX_TTL

    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([shd])", text.strip())
    if parts is None:
        unclear = " m may be minutes or months." if text.strip().endswith("m") else ""
        message = f"{text!r} is not a duration such as 7200s, 12h or 7d.{unclear}"
        raise click.BadParameter(message)
    seconds = float(parts[1]) * _SECONDS_OF[parts[2]]
    if not 0 < seconds <= MAX_TTL:
        longest = f"{MAX_TTL / _SECONDS_OF['d']:.0f}d (100 years)"
        message = f"{text!r} is out of range: more than 0, at most {longest}."
        raise click.BadParameter(message)
    return seconds


def parse_function(text: str) -> Any:
    """Import ``MODULE:FUNCTION``, also from the current directory."""
    module_name, _, path = text.partition(":")
    if not module_name or not path:
        message = f"{text!r} is not MODULE:FUNCTION, such as my_app.name:function."
        raise click.BadParameter(message)
    found = _import_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            near = get_close_matches(name, vars(found), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.BadParameter(f"{module_name!r} has no {name!r}.{hint}")
        found = getattr(found, name)
    if not callable(found):
        raise click.BadParameter(f"{text!r} is not a function.")
    return found


def _import_module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            message = (
                f"There is no module {name!r}, neither installed nor in the current"
                " directory."
            )
            raise click.BadParameter(message) from None
        what = f"{type(error).__name__}: {printable(str(error)).rstrip('.')}"
        message = f"Module {name!r} cannot be imported: {what}. {DEBUG_HINT}"
        raise click.ClickException(message) from error


def _split_assignment(text: str, form: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not {form}, such as {example}.")
    return name, value


def parse_condition(text: str) -> tuple[str, Any]:
    """Parse a state key, and in JSON the value that it is to have."""
    key, value = _split_assignment(text, "KEY=JSON", "paid=true")
    try:
        return key, json.loads(value)
    except ValueError:
        message = (
            f"The value of {key!r} is not JSON; a text needs quotes:"
            f" '{key}={json.dumps(value)}'."
        )
        raise click.BadParameter(message) from None


def parse_start(text: str) -> float | str:
    return text if text in {"now", "beginning"} else parse_past_time(text)


def parse_label(text: str) -> tuple[str, str]:
    return _split_assignment(text, "NAME=VALUE", "stage=test")


def combine_decorators(
    *decorators: Callable[[Command], Command],
) -> Callable[[Command], Command]:
    """Join decorators to one, shown by --help in their order."""

    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


TYPES: Final[dict[str, Any]] = {
    "N": click.IntRange(min=0),
    "DURATION": parse_duration,
    "TIME": parse_time,
    "now|beginning|TIME": parse_start,
    "KEY=JSON": parse_condition,
    "NAME=VALUE": parse_label,
    "MODULE:FUNCTION": parse_function,
}
"""How a value is parsed, by its name in the help; any other is a text."""


def option(
    declared: str, text: str, *name: str, **more: Any
) -> Callable[[Command], Command]:
    """Declare an option: ``--limit N`` takes a number, ``--dry-run`` nothing.

    A ``name`` is that of its parameter, unless it is the option's own.
    """
    *spellings, value = declared.split()
    if value.startswith("-"):
        return click.option(*spellings, value, *name, is_flag=True, help=text, **more)
    how = {"type": TYPES.get(value, str), "metavar": value, **more}
    shows = "default" in more
    return click.option(*spellings, *name, help=text, show_default=shows, **how)


def _store_option(
    context: click.Context, parameter: click.Parameter, value: Any
) -> Any:
    if value:
        setattr(context.ensure_object(SharedOptions), str(parameter.name), value)
    return value


def _store_uri(
    context: click.Context, parameter: click.Parameter, uri: str | None
) -> None:
    """Keep a URI that was given as an option or as an argument."""
    shared = context.ensure_object(SharedOptions)
    names_app = any("--app" in each.opts for each in context.command.params)
    if uri and names_app and "://" not in uri and parameter.param_type_name != "option":
        app = shlex.quote(printable(uri))
        message = f"{app} is no MongoDB URI. Did you mean --app {app}?"
        raise click.UsageError(message, context)
    if uri and shared.uri not in {None, uri}:
        message = "Two different URIs are given: leave one of them out."
        raise click.UsageError(message, context)
    shared.uri = uri or shared.uri


class StderrHandler(logging.Handler):
    """Shows what the library logs, a line each."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        terminal.warn(printable(record.getMessage()))


def _show_log(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:  # noqa: FBT001
    if not is_wanted:
        return
    context.ensure_object(SharedOptions).verbose = True
    library, handler = logging.getLogger("mongo_session_service"), StderrHandler()
    level = library.level
    library.addHandler(handler)
    library.setLevel(logging.DEBUG)
    context.call_on_close(lambda: library.setLevel(level))
    context.call_on_close(lambda: library.removeHandler(handler))


_kept: Final[dict[str, Any]] = {"expose_value": False, "callback": _store_option}
as_json: Final = option("--json", "Print JSON, one object per line.", **_kept)
uri_argument: Final = click.argument(
    "address", metavar="[URI]", required=False, expose_value=False, callback=_store_uri
)
dry_run: Final = option("--dry-run", "Only show what would be done.", **_kept)
removal_options: Final = combine_decorators(
    option("--yes", "Do it without asking.", **_kept),
    dry_run,
    as_json,
)
"""Options of a command that asks before it acts; see :func:`confirm`."""

verbosity_options: Final = combine_decorators(
    option(
        "-v --verbose",
        "Show details, and what the library logs.",
        expose_value=False,
        callback=_show_log,
    ),
    option("-q --quiet", "Show only results, warnings and errors.", **_kept),
    # Eager: before a function that an argument names is loaded.
    option("--debug", "Show the traceback of a failure.", is_eager=True, **_kept),
)

address_options: Final = combine_decorators(
    click.option(
        "--uri",
        metavar="URI",
        expose_value=False,
        callback=_store_uri,
        is_eager=True,  # before the missing argument is noticed
        help="MongoDB's URI. MONGODB_URI is safer, or MONGODB_PASSWORD beside it: other"
        " users of this machine can read a command line, and so the password.",
    ),
    option("--database TEXT", "By default the one in the URI, or else adk.", **_kept),
    option("--prefix TEXT", "Prefix of the collections' names.", **_kept),
    verbosity_options,
)
"""Options for the :class:`ServiceAddress`, and for how much is printed."""


@dataclass(slots=True)
class ServiceAddress:
    """Address of stored sessions, as the command line or the environment names it."""

    uri: str = field(repr=False)
    database: str | None
    prefix: str
    location: str = field(init=False)
    """Database and server, without user and password, once there is a service."""

    @classmethod
    def named(cls) -> Self:
        shared = shared_options()
        uri = shared.uri or os.environ.get("MONGODB_URI")
        if not uri:
            raise click.UsageError(
                "No MongoDB URI. Set MONGODB_URI, or give --uri"
                " 'mongodb://127.0.0.1:27017/adk?replicaSet=rs0'."
            )
        uri = with_password(uri, os.environ.get("MONGODB_PASSWORD"))
        return cls(uri, shared.database, shared.prefix)

    @asynccontextmanager
    async def open_with_key(
        self, app: str, user: str, session: str
    ) -> AsyncIterator[tuple[MongoSessionService, SessionKey]]:
        """Make a service there, and the key of a session that its arguments name."""
        async with self.open_service(app) as service:
            from mongo_session_service.model.records import session_key

            yield service, session_key(app, user, session)

    @asynccontextmanager
    async def open_service(
        self,
        app: str | None = None,
        *,
        before_store: Hook | None = None,
        after_load: Hook | None = None,
    ) -> AsyncIterator[MongoSessionService]:
        """Make a service there, once MongoDB has answered.

        An error about a session that is not found names the database and the command
        that lists the app's sessions.
        """
        # First, because without MongoDB there is no need to import ADK.
        from mongo_session_service.storage.server import require_answer

        await require_answer(self.uri, ANSWER_LIMIT)
        from google.adk.errors.session_not_found_error import SessionNotFoundError

        from mongo_session_service.service import MongoSessionService

        service = MongoSessionService(
            self.uri,
            database=self.database,
            collection_prefix=self.prefix,
            before_store=before_store,
            after_load=after_load,
        )
        authority = self.uri.partition("://")[2].partition("?")[0].partition("/")[0]
        hosts = authority.rpartition("@")[2]
        self.location = printable(f"database {service.database_name} on {hosts}")
        try:
            # Not set up: a command on a wrong database must not create anything.
            yield service
        except SessionNotFoundError as error:
            named = "APP" if app is None else shlex.quote(printable(app))
            raise click.ClickException(
                f"{printable(str(error))} Check app, user and session;"
                f" `mongo-session-service sessions --app {named}` lists them. This is"
                f" {self.location}."
            ) from None
        finally:
            await service.close()


def with_address(
    body: Callable[Concatenate[ServiceAddress, ...], Coroutine[Any, Any, Any]],
) -> Callable[..., Any]:
    """Let click call a command's coroutine, with the address that its options name.

    That of a group runs only where no subcommand is given.
    """

    @address_options
    @click.pass_context
    @functools.wraps(body)
    def command(context: click.Context, /, **options: Any) -> Any:
        if context.invoked_subcommand is None:
            import asyncio

            return asyncio.run(body(ServiceAddress.named(), **options))
        return None

    return command


@contextmanager
def noting_interruption(note: Callable[[], str]) -> Iterator[None]:
    """Print what an interruption leaves of the work in the block."""
    from asyncio import CancelledError

    try:
        yield
    except CancelledError:
        terminal.warn(f"Interrupted: {note()}. Run it again for the rest.")
        raise


def with_password(url: str, password: str | None) -> str:
    if password is None:
        return url
    parts = re.fullmatch(r"([\w+.-]+://)([^/@:]+)(?::[^/@]*)?@(.*)", url, re.DOTALL)
    if parts is None:
        raise click.UsageError(
            "A password needs a user in the URL: scheme://user@host."
        )
    return f"{parts[1]}{parts[2]}:{quote(password, safe='')}@{parts[3]}"


def asks() -> bool:
    """Whether somebody can be asked, and has not agreed beforehand."""
    given = shared_options()
    return sys.stdin.isatty() and not (given.yes or given.dry_run)


def confirm(plan: str) -> None:
    """Print what will be done, and ask to confirm it, unless ``--yes`` was given."""
    given = shared_options()
    if given.yes or given.dry_run:
        return
    terminal.warn(plan)
    if not sys.stdin.isatty():
        message = "Nothing was done, as there is no terminal: add --yes."
        raise click.UsageError(message)
    # The event loop's own handler would only note the first Ctrl-C, and go on waiting.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        is_agreed = click.confirm("Do it?", err=True)
    finally:
        signal.signal(signal.SIGINT, handler)
    if not is_agreed:
        raise click.ClickException("Nothing was done.")


def did(verb: str) -> str:
    """Say that a command has done something, or would without ``--dry-run``."""
    if shared_options().dry_run:
        return f"Would {verb}"
    return f"{verb.removesuffix('e')}ed".capitalize()


selection_options: Final = combine_decorators(
    *(
        option(f"--{it} TEXT", f"Only this {it}; repeatable.", f"{it}s", multiple=True)
        for it in ("app", "user", "session")
    ),
    option("--since TIME", "Only sessions updated since this ISO 8601 time."),
)
"""Options that choose what is moved, compared or exported; see :func:`selection`."""


def selection(options: dict[str, Any]) -> Selection:
    from mongo_session_service.transfer import Selection

    names = ("apps", "users", "sessions")
    chosen = {name: frozenset(options.pop(name)) for name in names}
    return Selection(**chosen, since=options.pop("since"))


key_options: Final = combine_decorators(
    *(option(f"--{it} TEXT", f"Only this {it}.") for it in ("app", "user", "session"))
)
"""Options that choose what is followed; see :func:`check_key`."""

session_arguments: Final = combine_decorators(
    *(click.argument(part, metavar=part.upper()) for part in ("app", "user", "session"))
)


def check_key(app: str | None, user: str | None, session: str | None = None) -> None:
    """Require an app for a user, and both for a session."""
    if session is not None and (app is None or user is None):
        raise click.UsageError("--session needs --app and --user.")
    if user is not None and app is None:
        raise click.UsageError("--user needs --app.")


def describe(*parts: str | None) -> str:
    """Name an app, a user or a session in words, by the parts of its key."""
    match [printable(each) for each in parts if each is not None]:
        case []:
            return "everything"
        case [app]:
            return f"app {app}"
        case [app, user]:
            return f"user {user} of app {app}"
        case shown:
            return f"session {'/'.join(shown)}"


details: Final = {
    "title": option("--title TEXT", "The session's title."),
    "labels": option(
        "--label NAME=VALUE",
        "A label of the session; repeatable.",
        "labels",
        multiple=True,
    ),
    "ttl": option(
        "--ttl DURATION",
        "Time to live, from now on and again after each event: 7200s, 12h, 7d.",
    ),
    "expire_time": option(
        "--expire-time TIME",
        "When it expires, whatever happens: ISO 8601, in UTC if it names no zone.",
        type=parse_future_time,
    ),
}
"""The options for what people note of a session, by the fields of ``Details``."""
details_ended: Final = (
    option("--no-title", "Remove its title."),
    option("--no-labels", "Remove its labels, except those that --label sets."),
    option("--no-expiry", "Never let it expire.", "no_expire_time"),
)
"""And those that end one, whose parameters have its name after ``no_``."""


def database_and_prefix() -> tuple[str, str]:
    """Return the names that are meant, of the database and before its collections."""
    from mongo_session_service.storage import clients

    shared = shared_options()
    uri = shared.uri or os.environ.get("MONGODB_URI") or "mongodb://127.0.0.1"
    client = clients.open_client(uri)
    database = (
        shared.database or client.get_default_database(clients.DEFAULT_DATABASE).name
    )
    clients.check_names(client, database, shared.prefix)
    return database, shared.prefix
