"""Command ``setup``: creation of collections, indexes and the schema version."""

from __future__ import annotations

from typing import Literal

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.schema.indexes import OPTIONAL


@click.command()
@options.uri_argument
@click.option(
    "--index",
    type=click.Choice(sorted(OPTIONAL)),
    help="Create this index as well: activity lists sessions by their last update.",
)
@options.as_json
@options.connected
async def setup(
    place: options.Place, index: Literal["activity"] | None, *, as_json: bool
) -> bool:
    """Creates the collections and indexes that are missing.

    A service does so on its first use. This command does it beforehand, for example as
    a user with more privileges, or before the first users come. What exists is left as
    it is. An index that cannot be created is named on stderr; the exit code is then 3.

    An --index is created on request only, since it makes every append slower.

    \b
    Example:
      mongo-session-service setup
      mongo-session-service setup --index activity
    """  # noqa: D301  \b is click's sign
    async with place.service() as service:
        from mongo_session_service.admin import contents

        before = await contents.layout(service)
        await service.setup(index=index)
        after = await contents.layout(service)
        where = await place.where(service)
    created = sorted(after.collections - before.collections)
    made = before.missing_indexes - after.missing_indexes
    indexes = sorted(made | after.optional_indexes - before.optional_indexes)
    if as_json:
        terminal.Screen().write_json(
            {
                "collections": created,
                "indexes": indexes,
                "missing_indexes": sorted(after.missing_indexes),
                "schema_version": after.schema_version,
            }
        )
        return not after.missing_indexes
    for names, what in ((created, "collections"), (indexes, "indexes")):
        if names:
            terminal.say(f"Created {what}: {', '.join(names)}.")
    done = "Set up" if created or indexes else "Nothing had to be created in"
    terminal.say(f"{done} {where}: schema version {after.schema_version}.")
    return not after.missing_indexes
