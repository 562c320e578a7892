"""The options every command has: where MongoDB is, and whether to tell more."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import click

if TYPE_CHECKING:
    from mongo_session_service.service import MongoSessionService

Command = TypeVar("Command", bound=Callable[..., Any] | click.Command)

PATIENCE: Final = 5.0
"""Seconds for MongoDB to answer at first, unless the URI has a time of its own."""

_META: Final = "mongo-session-service"
_NO_URI: Final = (
    "No MongoDB URI. Set MONGODB_URI, or give --uri"
    " 'mongodb://127.0.0.1:27017/my_db?replicaSet=rs0'."
)


def noted(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Keep an option where every subcommand finds it, before or after whose name."""
    if value is not None and value is not False:
        context.meta[f"{_META}.{parameter.name}"] = value
    return said(context, str(parameter.name))


def placed(context: click.Context, _: click.Parameter, uri: str | None) -> None:
    """Keep a URI, be it an option of any command or an argument.

    Raises:
        UsageError: another is given as well.
    """
    if not uri:
        return
    if said(context, "uri") not in {None, uri}:
        message = "The URI is given twice, and not the same: leave one of them out."
        raise click.UsageError(message, context)
    context.meta[f"{_META}.uri"] = uri


def said(context: click.Context, name: str) -> Any:
    """What an option says, wherever it stands."""
    return context.meta.get(f"{_META}.{name}")


uri_option: Final = click.option(
    "--uri",
    metavar="URI",
    expose_value=False,
    callback=placed,
    is_eager=True,  # known when an argument that may be left out is looked at
    help="Where MongoDB is. Better set MONGODB_URI: others on this machine can read a"
    " command line, and the password in it.",
)
uri_argument: Final = click.argument(
    "place", metavar="[URI]", required=False, expose_value=False, callback=placed
)


def _option(*names: str, **attributes: Any) -> Callable[[Command], Command]:
    return click.option(*names, expose_value=False, callback=noted, **attributes)


def connection_options(command: Command) -> Command:
    """Gives a command the options that say where MongoDB is; see :class:`Place`."""
    options = [
        uri_option,
        _option("--database", help="By default the URI's, or else adk."),
        _option("--prefix", help="What its collections' names begin with."),
        _option("--debug", is_flag=True, help="Show where in the code it failed."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Place:
    """Where sessions are kept, as a command line says."""

    uri: str = field(repr=False)
    database: str | None
    prefix: str

    @classmethod
    def of(cls, context: click.Context) -> Self:
        """What the options say, or else the environment.

        Raises:
            UsageError: no URI is given.
        """
        return cls(
            uri_of(context), said(context, "database"), said(context, "prefix") or ""
        )

    @asynccontextmanager
    async def service(self) -> AsyncIterator[MongoSessionService]:
        """A service there, once MongoDB has answered.

        Raises:
            MongoSessionServiceError: the URI is none, or MongoDB does not answer soon.
        """
        # First, because without MongoDB there is no need to import ADK.
        await self._knock()
        from mongo_session_service.service import MongoSessionService

        service = MongoSessionService(
            self.uri, database=self.database, collection_prefix=self.prefix
        )
        try:
            # Not set up: who looks at a wrong database must not create anything.
            yield service
        finally:
            await service.close()

    async def _knock(self) -> None:
        """Have MongoDB answer soon; a service would rather be patient."""
        import pymongo

        from mongo_session_service.driver.errors import translated
        from mongo_session_service.driver.server import greeted
        from mongo_session_service.driver.uri import open_client

        client = open_client(self.uri)
        is_told = "serverselectiontimeoutms" in self.uri.lower()
        with translated():
            try:
                with pymongo.timeout(None if is_told else PATIENCE):
                    await greeted(client)
            finally:
                await client.close()


def uri_of(context: click.Context) -> str:
    """Where MongoDB is, as the options or else the environment say.

    Raises:
        UsageError: they say nothing.
    """
    uri: str | None = said(context, "uri") or os.environ.get("MONGODB_URI")
    if not uri:
        raise click.UsageError(_NO_URI, context)
    return uri


def is_debugging(context: click.Context) -> bool:
    """Whether --debug is given."""
    return bool(said(context, "debug"))
