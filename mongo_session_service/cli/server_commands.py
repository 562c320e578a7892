"""Commands that prepare, check and start MongoDB."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service import admin
from mongo_session_service.admin.privileges import FEATURES, role_for, script
from mongo_session_service.cli import options, terminal

if TYPE_CHECKING:
    from rich.table import Table

    from mongo_session_service.admin.doctor import Finding

_MARKS: Final = {
    "ok": ("\N{CHECK MARK}", terminal.GOOD),
    "warning": ("!", terminal.WARNING),
    "failed": ("\N{BALLOT X}", terminal.BAD),
    "unknown": ("?", terminal.NOTE),
}


_features_option: Final = click.option(
    "--for",
    "features",
    type=click.Choice(list(FEATURES)),
    multiple=True,
    help="Only what this feature needs; repeatable.",
)


@click.command()
@options.uri_argument
@options.dry_run
@options.as_json
@options.with_address
async def setup(address: options.ServiceAddress) -> bool:
    """Creates the collections and indexes that are missing.

    A service does so with its first write. This command does it beforehand, for example
    as a user with more privileges, or before the first users come. What exists is left
    as it is. An index that cannot be created is named on stderr; the exit code is then
    3.

    \b
    Example:
      mongo-session-service setup
    """
    dry_run = terminal.shared_options().dry_run
    async with address.open_service() as service:
        before = after = await admin.stored_contents.read_schema(service)
        created, indexes = before.missing_collections, before.missing_indexes
        if not dry_run:
            await service.setup()
            after = await admin.stored_contents.read_schema(service)
            created -= after.missing_collections
            indexes -= after.missing_indexes
    is_complete = dry_run or not after.missing_indexes  # if not, a warning names them
    figures: dict[str, Any] = {
        "collections": sorted(created),
        "indexes": sorted(indexes),
        "missing_indexes": sorted(after.missing_indexes),
        "schema_version": after.schema_version,
    }
    done = [
        f"{options.did('create')} {name}: {', '.join(figures[name])}."
        for name in ("collections", "indexes")
        if figures[name]
    ]
    if is_complete and not done:
        done.append(f"Nothing has to be created in {address.location}.")
    elif is_complete and not dry_run:
        done.append(
            f"Set up {address.location}: schema version {after.schema_version}."
        )
    terminal.show_result(figures, "\n".join(done))
    return is_complete


@click.command(short_help="Checks the server, the user and the setup.")
@options.uri_argument
@_features_option
@options.option("--strict", "Exit with 3 after warnings, too.")
@options.as_json
@options.with_address
async def doctor(
    address: options.ServiceAddress, features: list[str], *, strict: bool
) -> bool:
    """Checks MongoDB, the user's privileges, and the setup; changes nothing.

    It reads no sessions and events: `export --to /dev/null` reads all of them.

    The exit code is 3 if a check has failed; with --strict, also after a warning. A
    user who may do less than everything is checked by what it needs: --for sessions.

    \b
    Example:
      mongo-session-service doctor 'mongodb://127.0.0.1:27017/adk?replicaSet=rs0'
      mongo-session-service doctor --strict --for sessions
    """
    counts = Counter[str]()
    is_json = terminal.shared_options().json
    async with address.open_service() as service:
        from mongo_session_service.admin.doctor import examine

        async for finding in examine(service, features or FEATURES):
            counts[finding.status] += 1
            if is_json:
                terminal.show_json(finding)
            else:
                terminal.show(_finding_row(finding))
        if not is_json:
            counted = ", ".join(f"{name}: {count}" for name, count in counts.items())
            terminal.print_remark(
                f"{counted}, in {address.location}. Sessions and events were not read."
            )
    return {"failed", "warning" if strict else "failed"}.isdisjoint(counts)


def _finding_row(finding: Finding) -> Table:
    from rich.table import Table
    from rich.text import Text

    says = Text(terminal.printable(finding.says))
    lacking = finding.lacking if terminal.shared_options().verbose else {}
    for feature, missing in lacking.items():
        says.append(f"\n  {feature}: {'; '.join(missing)}")
    if finding.remedy:
        says.append(f"\n{terminal.printable(finding.remedy)}", terminal.NOTE)
    mark, style = _MARKS[finding.status]
    row = Table.grid()
    row.add_column(min_width=11, no_wrap=True, style=style)
    row.add_column(min_width=16, no_wrap=True, style="bold")
    row.add_column(overflow="fold")
    row.add_row(f"{mark} {finding.status} ", f"{finding.check} ", says)
    return row


@click.command(short_help="Prints a role with the privileges that the service needs.")
@options.uri_argument
@_features_option
@options.option(
    "--role NAME",
    "The role's name; by default mongo_session_service_DATABASE.",
    "name",
)
@options.as_json
@options.address_options
def grants(features: list[str], name: str | None) -> None:
    """Prints a role with the privileges that the service needs, and no others.

    It is a script for mongosh, and can be run again. "sessions" is what an agent needs;
    "changes" is for watching and consumers, which read the whole database; "setup"
    creates collections and indexes; "import" imports other stores, together with
    "sessions"; "erase" is for delete_user and delete_app, together with both; "storage"
    for the command of that name.

    \b
    Example:
      mongo-session-service grants --database adk > grants.js
      mongo-session-service grants --database adk --for sessions --for changes
    """
    database, prefix = options.database_and_prefix()
    role = role_for(database, prefix=prefix, features=features or FEATURES, name=name)
    if terminal.shared_options().json:
        terminal.show_json(role)
    else:
        click.echo(script(role).rstrip())


@click.command()
@click.option(
    "--members",
    type=click.IntRange(1, 7),
    default=1,
    show_default=True,
    help="Number of members of the replica set.",
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data here, and use the same port again; without it the data is"
    " deleted at the end.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    show_default="27017, or any free port if that is taken",
    help="Port to listen on; 0 for any free port.",
)
@options.verbosity_options
def mongod(members: int, data_dir: Path | None, port: int | None) -> None:
    """Starts a MongoDB replica set on this machine, until Ctrl-C.

    It prints the URI, alone on stdout, with the database adk. For development only: it
    asks for no password, and listens on 127.0.0.1. Further members use the next ports.

    \b
    Example:
      mongo-session-service mongod --data-dir .mongodb
    """
    from mongo_session_service.embedded import EmbeddedReplicaSet, EmbeddedServerError
    from mongo_session_service.embedded.mongod import STANDARD_PORT, standard_port

    first = standard_port(data_dir, members) if port is None else port or None
    is_taken = port is None and standard_port(None, members) is None
    try:
        replica_set = EmbeddedReplicaSet(members, data_dir, port=first)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        with suppress(KeyboardInterrupt), replica_set:
            uri = replica_set.uri.replace("/?", "/adk?")
            # On a terminal a remark has it.
            if terminal.shared_options().quiet or not sys.stdout.isatty():
                click.echo(uri)
            kept = f"kept in {data_dir}" if data_dir else "deleted at the end"
            terminal.print_remark(f"MongoDB is running; data {kept}. Ctrl-C ends it.")
            if is_taken:
                terminal.print_remark(
                    f"Port {STANDARD_PORT} is taken, so it uses another."
                )
            terminal.print_remark(f"In another terminal: export MONGODB_URI='{uri}'")
            replica_set.wait_for_failure()
    except EmbeddedServerError as error:
        raise click.ClickException(str(error)) from None
    terminal.print_remark("MongoDB has ended.")
