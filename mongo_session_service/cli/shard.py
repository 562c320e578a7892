"""Command ``shard``: how an administrator spreads the collections over shards."""

from __future__ import annotations

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.kept import said


def _zone(text: str) -> tuple[str, str]:
    app_name, equals, zone = text.rpartition("=")
    if not (app_name and equals and zone):
        raise click.BadParameter(f"{text!r} is not APP=ZONE.")
    return app_name, zone


@click.command(short_help="Prints how to spread the data over shards.")
@options.uri_argument
@click.option(
    "--plan",
    "is_plan",
    is_flag=True,
    help="Print what would be done, and do nothing.",
)
@click.option(
    "--zone",
    "zones",
    type=_zone,
    multiple=True,
    metavar="APP=ZONE",
    help="Keep an app on the shards of a zone; repeatable.",
)
@options.place_options
@click.pass_context
def shard(
    context: click.Context, zones: list[tuple[str, str]], *, is_plan: bool
) -> None:
    """Prints a script for mongosh that shards the collections which grow with users.

    Each user's sessions, events and state have the same shard key. The script creates
    the indexes that the key needs, and can be run again. This command itself connects
    to nothing, and always needs --plan.

    \b
    Example:
      mongo-session-service shard --plan --database adk > shard.js
      mongo-session-service shard --plan --zone support=europe > shard.js
    """  # noqa: D301
    if not is_plan:
        raise click.UsageError("Add --plan: this command only prints the script.")
    from mongo_session_service.schema import sharding

    database = options.named_database(context)
    prefix = said(context, "prefix") or ""
    screen = terminal.Screen()
    screen.write(sharding.script(database, prefix, zones).rstrip())
