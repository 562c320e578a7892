"""``grants``: what an administrator has to grant the service's user."""

from __future__ import annotations

import json
import os

import click

from mongo_session_service.admin.grants import FEATURES, role_for, script
from mongo_session_service.cli.options import place_options, said, uri_argument
from mongo_session_service.cli.terminal import Screen


@click.command(short_help="Prints a role with the privileges that the service needs.")
@uri_argument
@click.option(
    "--for",
    "features",
    type=click.Choice(list(FEATURES)),
    multiple=True,
    help="Only for this; repeatable.",
)
@click.option(
    "--role", "name", help="The role's name; by default mongo_session_service_DATABASE."
)
@click.option("--json", "as_json", is_flag=True, help="The createRole command.")
@place_options
@click.pass_context
def grants(
    context: click.Context,
    features: tuple[str, ...],
    name: str | None,
    *,
    as_json: bool,
) -> None:
    """Prints a role with the privileges that the service needs, and no others.

    It is a script for mongosh, and can be run again. "sessions" is what an agent needs;
    "changes" is for watching and consumers, which read the whole database; "setup"
    creates and migrates collections; "import" imports other stores, together with
    "sessions"; "erase" is for delete_user and delete_app, together with both.

    \b
    Example:
      mongo-session-service grants --database my_db > grants.js
      mongo-session-service grants --database my_db --for sessions --for changes
    """  # noqa: D301
    created = role_for(
        _database(context),
        prefix=said(context, "prefix") or "",
        features=features or FEATURES,
        name=name,
    )
    Screen().write(json.dumps(created) if as_json else script(created).rstrip())


def _database(context: click.Context) -> str:
    from mongo_session_service.driver import uri as uris

    database: str | None = said(context, "database")
    uri: str | None = said(context, "uri") or os.environ.get("MONGODB_URI")
    if database is None and uri:
        client = uris.open_client(uri)
        named = client.get_default_database(uris.DEFAULT_DATABASE).name
        uris.check_names(client, named, "")
        return named
    return database or uris.DEFAULT_DATABASE
