"""Command ``grants``: what an administrator has to grant the service's user."""

from __future__ import annotations

import click

from mongo_session_service.admin.grants import FEATURES, role_for, script
from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.kept import said


def _role(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{name!r} is not UTF-8.") from None
    return name


@click.command(short_help="Prints a role with the privileges that the service needs.")
@options.uri_argument
@click.option(
    "--for",
    "features",
    type=click.Choice(list(FEATURES)),
    multiple=True,
    help="Only what this feature needs; repeatable.",
)
@click.option(
    "--role",
    "name",
    type=_role,
    metavar="NAME",
    help="The role's name; by default mongo_session_service_DATABASE.",
)
@options.as_json
@options.place_options
@click.pass_context
def grants(
    context: click.Context, features: list[str], name: str | None, *, as_json: bool
) -> None:
    """Prints a role with the privileges that the service needs, and no others.

    It is a script for mongosh, and can be run again. "sessions" is what an agent needs;
    "changes" is for watching and consumers, which read the whole database; "setup"
    creates and migrates collections; "import" imports other stores, together with
    "sessions"; "erase" is for delete_user and delete_app, together with both.

    \b
    Example:
      mongo-session-service grants --database adk > grants.js
      mongo-session-service grants --database adk --for sessions --for changes
    """  # noqa: D301
    prefix = said(context, "prefix") or ""
    wanted = features or FEATURES
    database = options.named_database(context)
    role = role_for(database, prefix=prefix, features=wanted, name=name)
    screen = terminal.Screen()
    if as_json:
        screen.write_json(role)
    else:
        screen.write(script(role).rstrip())
