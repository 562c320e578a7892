"""Command-line options: where MongoDB is, passwords, and what is selected."""

from __future__ import annotations

import functools
import logging
import os
import re
import shlex
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Concatenate, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote

import click
from typing_extensions import override

from mongo_session_service.cli import terminal
from mongo_session_service.cli.kept import keep, kept_option, said
from mongo_session_service.cli.terminal import printable

if TYPE_CHECKING:
    from mongo_session_service.model.records import SessionKey
    from mongo_session_service.service import MongoSessionService
    from mongo_session_service.transfer import Selection

Command = TypeVar("Command", bound=Callable[..., Any])
Result = TypeVar("Result")

ANSWER_LIMIT: Final = 5.0
"""Seconds for MongoDB to answer at first, unless the URI sets a time of its own."""

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds of the units of durations."""

_NO_URI: Final = (
    "No MongoDB URI. Set MONGODB_URI, or give --uri"
    " 'mongodb://127.0.0.1:27017/adk?replicaSet=rs0'."
)


def several(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Decorators as one, shown by --help in their order."""

    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


def _keep_uri(context: click.Context, _: click.Parameter, uri: str | None) -> None:
    """Keep a URI, whether it is an option of any command or an argument.

    Raises:
        UsageError: another URI is given as well.
    """
    if not uri:
        return
    if said(context, "uri") not in {None, uri}:
        message = "Two different URIs are given: leave one of them out."
        raise click.UsageError(message, context)
    keep(context, "uri", uri)


class _Log(logging.Handler):
    """Shows what the library logs, a line each."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        terminal.warn(printable(record.getMessage()))


def _say_more(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:  # noqa: FBT001
    """Keep --verbose, and show what the library logs while the command runs."""
    if not is_wanted or said(context, "verbose"):
        return
    keep(context, "verbose", value=True)
    library, handler = logging.getLogger("mongo_session_service"), _Log()
    level = library.level
    library.addHandler(handler)
    library.setLevel(logging.DEBUG)
    root = context.find_root()
    root.call_on_close(lambda: library.setLevel(level))
    root.call_on_close(lambda: library.removeHandler(handler))


as_json: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object per line."
)
uri_option: Final = click.option(
    "--uri",
    metavar="URI",
    expose_value=False,
    callback=_keep_uri,
    is_eager=True,  # before the missing argument is noticed
    help="MongoDB's URI. MONGODB_URI is safer: other users of this machine can read"
    " a command line, and so the password.",
)
uri_argument: Final = click.argument(
    "place", metavar="[URI]", required=False, expose_value=False, callback=_keep_uri
)
dry_run: Final = click.option(
    "--dry-run", is_flag=True, help="Only say what would be done."
)
verbosity_options: Final = several(
    click.option(
        "-v",
        "--verbose",
        is_flag=True,
        expose_value=False,
        callback=_say_more,
        help="Show details, and what the library logs.",
    ),
    kept_option(
        "-q", "--quiet", is_flag=True, help="Show only results, warnings and errors."
    ),
    kept_option(
        "--debug",
        is_flag=True,
        is_eager=True,  # before a function that an argument names is loaded
        help="Show the traceback of a failure.",
    ),
)
"""How much is said, before or after the name of a command."""

place_options: Final = several(
    uri_option,
    kept_option(
        "--ask-password",
        is_flag=True,
        help="Ask for the password of the user in the URI; or set MONGODB_PASSWORD.",
    ),
    kept_option("--database", help="By default the one in the URI, or else adk."),
    kept_option("--prefix", help="Prefix of the collections' names."),
    verbosity_options,
)
"""Where sessions are kept, see :class:`Place`, and how much is said."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where sessions are kept, as the command line or the environment says."""

    uri: str = field(repr=False)
    database: str | None
    prefix: str

    @classmethod
    def of(cls, context: click.Context) -> Self:
        """What the options say, or else the environment; asks for a password.

        Raises:
            UsageError: no URI is given, or a password but no user for it.
        """
        uri = said(context, "uri") or os.environ.get("MONGODB_URI")
        if not uri:
            raise click.UsageError(_NO_URI, context)
        is_asked = bool(said(context, "ask_password"))
        return cls(
            with_password(uri, password("MongoDB", "MONGODB_PASSWORD", is_asked)),
            said(context, "database"),
            said(context, "prefix") or "",
        )

    @asynccontextmanager
    async def service(
        self, app: str | None = None
    ) -> AsyncIterator[MongoSessionService]:
        """A service there, once MongoDB has answered.

        If a session is not found, it says whether its app has any.

        Raises:
            MongoSessionServiceError: the URI is invalid, or MongoDB does not answer
                soon.
        """
        # First, because without MongoDB there is no need to import ADK.
        await self._knock()
        from google.adk.errors.session_not_found_error import SessionNotFoundError

        from mongo_session_service.service import MongoSessionService

        service = MongoSessionService(
            self.uri, database=self.database, collection_prefix=self.prefix
        )
        try:
            # Not set up: a command on a wrong database must not create anything.
            yield service
        except SessionNotFoundError as error:
            text = printable(str(error))
            where = await self.where(service, app)
            named = "APP" if app is None else shlex.quote(printable(app))
            raise click.ClickException(
                f"{text} Check app, user and session; `mongo-session-service sessions"
                f" --app {named}` lists them. This is {where}."
            ) from None
        finally:
            await service.close()

    async def where(self, service: MongoSessionService, *apps: str | None) -> str:
        """The database and the server, and where sessions are if it holds none.

        The same of an app, if some are given.
        """
        from mongo_session_service.cli.whereabouts import whereabouts

        return await whereabouts(service, self.uri, list(filter(None, apps)))

    async def _knock(self) -> None:
        """Require that MongoDB answers soon; a service would wait longer."""
        import pymongo

        from mongo_session_service.driver.errors import translated
        from mongo_session_service.driver.server import greeted
        from mongo_session_service.driver.uri import open_client

        client = open_client(self.uri)
        has_own_time = "serverselectiontimeoutms" in self.uri.lower()
        with translated():
            try:
                with pymongo.timeout(None if has_own_time else ANSWER_LIMIT):
                    await greeted(client)
            finally:
                await client.close()


def connected(
    body: Callable[Concatenate[Place, ...], Coroutine[Any, Any, Any]],
) -> Callable[..., Any]:
    """A command's coroutine as click calls it: with the place that its options name.

    That of a group runs only where no subcommand is given.
    """

    @place_options
    @click.pass_context
    @functools.wraps(body)
    def command(context: click.Context, /, **options: Any) -> Any:
        if context.invoked_subcommand is None:
            return until_done(body(Place.of(context), **options))
        return None

    return command


def until_done(body: Coroutine[Any, Any, Result]) -> Result:
    """Run a command's coroutine to its end."""
    import asyncio

    return asyncio.run(body)


def password(what: str, variable: str, is_asked: bool) -> str | None:  # noqa: FBT001
    """A password that is asked for, or else is in the environment.

    Raises:
        UsageError: it is asked for, and nobody is there to answer.
    """
    if not is_asked:
        return os.environ.get(variable)
    try:
        answer: str = click.prompt(f"{what} password", hide_input=True, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        message = f"There is no terminal to ask for a password on: set {variable}."
        raise click.UsageError(message) from None
    return answer


def with_password(url: str, password: str | None) -> str:
    """A URL with a password for the user in it.

    Raises:
        UsageError: the URL has no user.
    """
    if password is None:
        return url
    parts = re.fullmatch(r"([\w+.-]+://)([^/@:]+)(?::[^/@]*)?@(.*)", url, re.DOTALL)
    if parts is None:
        raise click.UsageError(
            "A password needs a user in the URL: scheme://user@host."
        )
    return f"{parts[1]}{parts[2]}:{quote(password, safe='')}@{parts[3]}"


def timestamp(text: str) -> float:
    """A time as seconds since 1970: ISO 8601, in UTC unless it says otherwise.

    Raises:
        BadParameter: it is neither that nor seconds since 1970.
    """
    with suppress(ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(float(text), UTC).timestamp()
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    raise click.BadParameter(f"{text!r} is not a time such as 2026-11-21T04:00:00Z.")


def past(text: str) -> float:
    """A time between 1970 and now, as :func:`timestamp` reads it.

    Raises:
        BadParameter: it is not.
    """
    seconds = timestamp(text)
    if not 0 < seconds <= time.time():
        raise click.BadParameter(f"{text!r} is not in the past, after 1970.")
    return seconds


def future(text: str) -> float:
    """A time after now, as :func:`timestamp` reads it.

    Raises:
        BadParameter: it is not.
    """
    seconds = timestamp(text)
    if seconds <= time.time():
        raise click.BadParameter(f"{text!r} is not in the future.")
    return seconds


def duration(text: str) -> float:
    """A duration in seconds: a number of seconds, or with a unit.

    Raises:
        BadParameter: it is neither, or not within 100 years.
    """
    from mongo_session_service.model.metadata import MAX_TTL

    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if parts is None:
        raise click.BadParameter(
            f"{text!r} is not a duration such as 7200s, 12h or 7d."
        )
    seconds = float(parts[1]) * _UNITS[parts[2]]
    if not 0 < seconds <= MAX_TTL:
        longest = f"{MAX_TTL / _UNITS['d']:.0f}d (100 years)"
        message = f"{text!r} is out of range: more than 0, at most {longest}."
        raise click.BadParameter(message)
    return seconds


selection_options: Final = several(
    click.option("--app", "apps", multiple=True, help="Only this app; repeatable."),
    click.option("--user", "users", multiple=True, help="Only this user; repeatable."),
    click.option(
        "--since",
        type=timestamp,
        metavar="TIME",
        help="Only sessions updated since this ISO 8601 time.",
    ),
)
"""Which sessions are moved, compared or exported; see :func:`selection`."""


def selection(options: dict[str, Any]) -> Selection:
    """What the options select; they are taken out."""
    from mongo_session_service.transfer import Selection

    apps, users = frozenset(options.pop("apps")), frozenset(options.pop("users"))
    return Selection(apps, users, options.pop("since"))


class Watched(NamedTuple):
    """What the options --app, --user and --session choose to watch."""

    app_name: str | None
    user_id: str | None
    session_id: str | None

    @classmethod
    def of(cls, app: str | None, user: str | None, session: str | None) -> Self:
        """What they choose.

        Raises:
            UsageError: one is missing that another needs.
        """
        if session is not None and (app is None or user is None):
            raise click.UsageError("--session needs --app and --user.")
        if user is not None and app is None:
            raise click.UsageError("--user needs --app.")
        return cls(app, user, session)

    @property
    def chosen(self) -> list[str]:
        """The parts of the key that are given."""
        return [each for each in self if each is not None]

    def holds(self, key: SessionKey) -> bool:
        """Whether a session is among them."""
        return list(key[: len(self.chosen)]) == self.chosen

    @property
    def words(self) -> str:
        """What they choose, in words."""
        kind = ("everything", "app", "user", "session")[len(self.chosen)]
        return printable(" ".join([kind, "/".join(self.chosen)])).rstrip()


def watched_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that choose what is watched; the command receives ``watched``."""

    @functools.wraps(command)
    def choosing(
        *, app: str | None, user: str | None, session: str | None, **options: Any
    ) -> Any:
        return command(watched=Watched.of(app, user, session), **options)

    for each in ("session", "user", "app"):
        choosing = click.option(f"--{each}", help=f"Only this {each}.")(choosing)
    return choosing


def session_arguments(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments that name a session; the command receives its ids as ``ids``."""

    @functools.wraps(command)
    def naming(*, app: str, user: str, session: str, **options: Any) -> Any:
        return command(ids=(app, user, session), **options)

    for each in ("session", "user", "app"):
        naming = click.argument(each, metavar=each.upper())(naming)
    return naming


def label(text: str) -> tuple[str, str]:
    """A label's name and value.

    Raises:
        BadParameter: it is not ``NAME=VALUE``.
    """
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE, such as stage=test.")
    return name, value


title: Final = click.option("--title", help="The session's title.")
labels: Final = click.option(
    "--label",
    "labels",
    type=label,
    multiple=True,
    metavar="NAME=VALUE",
    help="A label of the session; repeatable.",
)


def named_database(context: click.Context) -> str:
    """The name of the database that is meant; nothing connects to it."""
    from mongo_session_service.driver import uri as uris

    uri = said(context, "uri") or os.environ.get("MONGODB_URI")
    client = uris.open_client(uri or "mongodb://127.0.0.1")
    named = client.get_default_database(uris.DEFAULT_DATABASE).name
    database: str = said(context, "database") or named
    uris.check_names(client, database, said(context, "prefix") or "")
    return database
