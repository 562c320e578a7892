"""Registry of sources: their names and options on the command line, their classes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service.cli.options import password, several, with_password
from mongo_session_service.cli.value_types import FUNCTION

if TYPE_CHECKING:
    from mongo_session_service.transfer import Selection, Source


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of source, as the commands name it."""

    name: str
    what: str
    example: str
    options: Callable[[Any], Any]
    source: str
    """The class in :mod:`mongo_session_service.transfer`."""


_password = click.option(
    "--ask-source-password",
    is_flag=True,
    help="Ask for the password of the user in SOURCE; or set SOURCE_PASSWORD.",
)
_source = several(click.argument("source", envvar="SOURCE_URL"), _password)
_path = click.argument("source", metavar="PATH", type=click.Path(allow_dash=True))
_zone = click.option(
    "--timezone",
    help="Time zone of the times in schema v0: that of the machine where google-adk"
    " 1.x ran, or UTC for ADK 2; by default that of this machine.",
)

_factory = click.argument("factory", metavar="MODULE:FUNCTION", type=FUNCTION)

KINDS: Final = (
    Kind(
        "sql",
        "ADK's DatabaseSessionService, schema v0 or v1",
        "sql postgresql://me@localhost/adk",
        several(_source, _zone),
        "SqlSource",
    ),
    Kind(
        "sqlite", "ADK's SqliteSessionService", "sqlite adk.db", _path, "SqliteSource"
    ),
    Kind(
        "adk-mongodb",
        "ADK's MongoDbSessionService",
        "adk-mongodb mongodb://localhost/old",
        several(
            _source,
            click.option("--source-database", help="By default the one in SOURCE."),
            click.option("--source-prefix", default="", help="As for --prefix."),
        ),
        "AdkMongoDbSource",
    ),
    Kind(
        "jsonl",
        "an export; - is standard input, .gz is unpacked",
        "jsonl sessions.jsonl.gz",
        _path,
        "JsonLinesSource",
    ),
    Kind(
        "service",
        "any BaseSessionService, which MODULE:FUNCTION returns",
        "service old_service:make --app my_app",
        _factory,
        "ServiceSource",
    ),
)


def prepared(options: dict[str, Any]) -> dict[str, Any]:
    """A command's options, with the source's password in its URL.

    Raises:
        UsageError: the source needs an option that is not given.
    """
    if "factory" in options and not options["apps"]:
        message = "Name the apps with --app: a session service does not list them."
        raise click.UsageError(message)
    if "ask_source_password" not in options:
        return options
    is_asked = options.pop("ask_source_password")
    secret = password("Source", "SOURCE_PASSWORD", is_asked)
    return options | {"source": with_password(options["source"], secret)}


def source_of(
    kind: Kind, options: dict[str, Any], chosen: Selection
) -> AbstractAsyncContextManager[Source]:
    """The source that the rest of a command's options describe."""
    from mongo_session_service import transfer
    from mongo_session_service.transfer.sources.service_source import opened

    if "factory" in options:
        return opened(options["factory"], chosen.apps)
    own = {name.removeprefix("source_"): value for name, value in options.items()}
    source: Source = getattr(transfer, kind.source)(own.pop("source"), **own)
    return source
