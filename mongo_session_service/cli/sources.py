"""The kinds of sources, as the commands name them, and what each is to the library."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service.cli.options import several, with_password

if TYPE_CHECKING:
    from mongo_session_service.service import MongoSessionService
    from mongo_session_service.transfer import Source


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of source, as the commands name it."""

    name: str
    what: str
    example: str
    parameters: Callable[[Any], Any]
    source: str
    """The class in :mod:`mongo_session_service.transfer`."""


_password = click.option(
    "--ask-source-password",
    is_flag=True,
    help="Ask for the password of the user in SOURCE; or set $SOURCE_PASSWORD.",
)
_source = several(click.argument("source", envvar="SOURCE_URL"), _password)
_path = click.argument("source", metavar="PATH")
_mongodb = several(
    _source,
    click.option("--source-database", "database", help="By default that of SOURCE."),
    click.option("--source-prefix", "prefix", default="", help="As for --prefix."),
)
_zone = click.option(
    "--timezone",
    help="Of schema v0: where google-adk 1.x ran, UTC for ADK 2; by default as here.",
)

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
        "adk-mongodb mongodb://localhost/adk",
        _mongodb,
        "AdkMongoDbSource",
    ),
    Kind(
        "extra-services",
        "the MongoDB service of adk-extra-services or google-adk-extras",
        "extra-services mongodb://localhost/adk_sessions --database my_db",
        _mongodb,
        "ExtraServicesSource",
    ),
    Kind(
        "jsonl",
        "an export; - is standard input, .gz is unpacked",
        "jsonl sessions.jsonl.gz",
        _path,
        "JsonLinesSource",
    ),
)

_PASSWORDS: Final = {"Target": "MONGODB_PASSWORD", "Source": "SOURCE_PASSWORD"}


def _password_of(options: dict[str, Any], flag: str, what: str) -> str | None:
    if options.pop(flag, False):
        answer: str = click.prompt(f"{what} password", hide_input=True, err=True)
        return answer
    return os.environ.get(_PASSWORDS[what])


def service_of(options: dict[str, Any]) -> MongoSessionService:
    """The service that the target's options describe, which are taken out."""
    from mongo_session_service.service import MongoSessionService

    password = _password_of(options, "ask_password", "Target")
    return MongoSessionService(
        with_password(options.pop("target"), password),
        database=options.pop("target_database"),
        collection_prefix=options.pop("target_prefix"),
    )


def source_of(kind: Kind, options: dict[str, Any]) -> Source:
    """What is left of the options is the source's own."""
    from mongo_session_service import transfer

    url = options.pop("source")
    if "ask_source_password" in options:
        password = _password_of(options, "ask_source_password", "Source")
        url = with_password(url, password)
    source: Source = getattr(transfer, kind.source)(url, **options)
    return source
