"""``import``, ``verify``, ``export`` and ``migrate``: moving in, moving out, moving on.

Exit codes: 0 done; 1 an error; 2 wrong usage; 3 done, but something was left out or
differs; 130 after Ctrl-C; 141 if nobody reads the output any more.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service.cli.connection import uri_option
from mongo_session_service.cli.options import (
    INCOMPLETE,
    debug_option,
    help_of,
    progress,
    run,
    selection,
    selection_options,
    several,
    target_options,
)
from mongo_session_service.cli.sources import KINDS, Kind, service_of, source_of
from mongo_session_service.model.wording import counted, plural

if TYPE_CHECKING:
    from mongo_session_service.transfer import (
        Exported,
        Moved,
        Problem,
        Source,
        Verified,
    )

_AGAIN: Final = "What was done stays; the same command goes on from there."
_HARMLESS: Final = "Nothing was changed; run the same command again."
_MARGIN: Final = 3600
"""Seconds: an event's time is when it began, and its store may be written later."""


def _contents(of: Verified | Exported) -> str:
    sessions, events = counted(of.sessions, "session"), counted(of.events, "event")
    return f"{sessions} with {events} and {counted(of.states, 'shared state')}"


def _show(problem: Problem) -> None:
    click.echo(f"  {problem}", err=True)


@click.group("import")
@uri_option
def import_() -> None:
    """Moves sessions of another store here; safe to repeat.

    What is there already is compared, and what it lacks is added. So a move that was
    broken off goes on, and one of a store in use is repeated to catch up.
    """


@click.group("verify", short_help="Compares another store with what was moved here.")
@uri_option
def verify_() -> None:
    """Compares another store with what was moved here, and prints each difference."""


def _import_of(kind: Kind) -> click.Command:
    def command(*, debug: bool, **options: Any) -> None:
        run(_import(kind, options), is_debug=debug, how_to_go_on=_AGAIN)

    decorate = several(
        click.command(
            kind.name,
            short_help=f"Imports from {kind.what}.",
            help=help_of(
                f"Imports from {kind.what}.",
                f"import {kind.example} mongodb://localhost/my_db",
            ),
        ),
        kind.parameters,
        target_options,
        selection_options,
        click.option("--dry-run", is_flag=True, help="Say what would be done."),
        click.option(
            "--on-conflict",
            type=click.Choice(["fail", "skip", "replace"]),
            default="fail",
            show_default=True,
            help="If something else is there under the same id.",
        ),
        click.option(
            "--on-error",
            type=click.Choice(["fail", "skip"]),
            default="fail",
            show_default=True,
            help="If something cannot be read or stored.",
        ),
        debug_option,
    )
    made: click.Command = decorate(command)
    return made


async def _import(kind: Kind, options: dict[str, Any]) -> int:
    from mongo_session_service.transfer import Policies, move

    chosen = selection(options)
    policies = Policies(
        options.pop("on_conflict"), options.pop("on_error"), options.pop("dry_run")
    )
    async with AsyncExitStack() as stack:
        service = service_of(options)
        stack.push_async_callback(service.close)
        source = await stack.enter_async_context(source_of(kind, options))
        totals = None if chosen.since else await source.totals(chosen)
        with progress("Importing", totals, source.share_read) as advance:
            moved = await move(
                source,
                service,
                chosen,
                policies,
                on_problem=_show,
                on_progress=lambda now: advance(now.read),
            )
    _report(moved, source, is_dry_run=policies.is_dry_run)
    if not moved.sessions and chosen.since is None:
        message = "The source holds no such session. Is it the right one, with the"
        click.echo(f"{message} right --app and --user?", err=True)
        return INCOMPLETE
    return 0 if moved.is_complete else INCOMPLETE


def _report(moved: Moved, source: Source, *, is_dry_run: bool) -> None:
    verb = "Would move" if is_dry_run else "Moved"
    states_left_out = f"{plural(moved.skipped_states, 'shared state')} left out"
    counts = {
        "new": moved.new,
        "caught up": moved.caught_up,
        "replaced": moved.replaced,
        "unchanged": moved.unchanged,
        "continued here": moved.ahead,
        "expired, left out": moved.expired,
        "left out for a conflict": moved.skipped,
        plural(moved.states, "shared state"): moved.states,
        states_left_out: moved.skipped_states,
        plural(moved.problems, "problem"): moved.problems,
    }
    shown = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)
    events = counted(moved.events, "event")
    click.echo(f"{verb} {events} from {source.name}: {shown or 'nothing'}.")
    if not is_dry_run:
        since = datetime.fromtimestamp(moved.started - _MARGIN, UTC)
        click.echo(f"To catch up later, add --since {since:%Y-%m-%dT%H:%M:%SZ}")


def _verify_of(kind: Kind) -> click.Command:
    def command(*, debug: bool, **options: Any) -> None:
        run(_verify(kind, options), is_debug=debug, how_to_go_on=_HARMLESS)

    decorate = several(
        click.command(
            kind.name,
            short_help=f"Verifies against {kind.what}.",
            help=help_of(
                f"Verifies against {kind.what}.",
                f"verify {kind.example} mongodb://localhost/my_db",
            ),
        ),
        kind.parameters,
        target_options,
        selection_options,
        click.option(
            "--exact", is_flag=True, help="Report sessions that only the target has."
        ),
        debug_option,
    )
    made: click.Command = decorate(command)
    return made


async def _verify(kind: Kind, options: dict[str, Any]) -> int:
    from mongo_session_service.transfer import StoreSource, verify

    chosen, is_exact = selection(options), options.pop("exact")
    async with AsyncExitStack() as stack:
        service = service_of(options)
        stack.push_async_callback(service.close)
        source = await stack.enter_async_context(source_of(kind, options))
        target = await stack.enter_async_context(StoreSource(service))
        totals = None if chosen.since else await source.totals(chosen)
        with progress("Verifying", totals, source.share_read) as advance:
            verified = await verify(
                source,
                target,
                chosen,
                is_exact=is_exact,
                on_difference=_show,
                on_progress=lambda now: advance(now.events),
            )
    number = verified.differences
    found = counted(number, "difference") if number else "no differences"
    click.echo(f"Compared {_contents(verified)}: {found}.")
    return 0 if verified.is_equal else INCOMPLETE


@click.command(
    "export",
    short_help="Writes sessions as JSON Lines.",
    help=help_of(
        "Writes sessions as JSON Lines, the same bytes for the same sessions.",
        "export mongodb://localhost/my_db --to sessions.jsonl.gz",
    ),
)
@target_options
@click.option(
    "--to",
    "path",
    default="-",
    help="A file, packed if it ends in .gz; standard output by default.",
)
@selection_options
@debug_option
def export_(*, debug: bool, **options: Any) -> None:
    """Export."""
    run(_export(options), is_debug=debug, how_to_go_on=_HARMLESS)


async def _export(options: dict[str, Any]) -> int:
    from mongo_session_service.transfer import StoreSource, export

    chosen, path = selection(options), options.pop("path")
    async with AsyncExitStack() as stack:
        service = service_of(options)
        stack.push_async_callback(service.close)
        source = await stack.enter_async_context(StoreSource(service))
        totals = None if chosen.since else await source.totals(chosen)
        with progress("Exporting", totals) as advance:
            exported = await export(
                source, path, chosen, on_progress=lambda now: advance(now.events)
            )
    click.echo(f"Exported {_contents(exported)}.", err=True)
    if not exported.sessions and chosen.since is None:
        message = f"There are no such {source.name}. Is it the right one, with the"
        click.echo(f"{message} right --prefix, --app and --user?", err=True)
        return INCOMPLETE
    return 0


@click.command(
    "migrate",
    short_help="Brings a database to this release's schema version.",
    help=help_of(
        "Brings a database to this release's schema version. Install this release"
        " everywhere first: it works with the older versions too.",
        "migrate mongodb://localhost/my_db --plan",
    ),
)
@target_options
@click.option("--plan", "is_plan", is_flag=True, help="Only show what is pending.")
@debug_option
def migrate_(*, debug: bool, **options: Any) -> None:
    """Migrate."""
    run(_migrate(options), is_debug=debug, how_to_go_on=_AGAIN)


async def _migrate(options: dict[str, Any]) -> int:
    from mongo_session_service.admin.migrator import Migrator

    is_plan = options.pop("is_plan")
    async with AsyncExitStack() as stack:
        service = service_of(options)
        stack.push_async_callback(service.close)
        migrator = Migrator(service)
        status = await migrator.status()
        click.echo(f"The data has schema version {status.version or 'none yet'}.")
        for each in status.pending:
            click.echo(f"  pending: {each.version}, {each.summary}")
        if status.pending and not is_plan:
            status = await migrator.migrate(
                lambda each: click.echo(f"  done: {each.version}")
            )
        if not status.pending:
            click.echo(f"Nothing is pending; the schema version is {status.version}.")
    return 0


for _kind in KINDS:
    import_.add_command(_import_of(_kind))
    verify_.add_command(_verify_of(_kind))

COMMANDS: Final = (import_, export_, verify_, migrate_)
