"""Transfer commands: ``import``, ``verify`` and ``export``."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click
from typing_extensions import override

from mongo_session_service.cli import sources
from mongo_session_service.cli.options import (
    Place,
    as_json,
    dry_run,
    place_options,
    selection,
    selection_options,
    several,
    until_done,
    uri_argument,
)
from mongo_session_service.cli.terminal import (
    printable,
    progress,
    say,
    show_json,
    warn,
)
from mongo_session_service.cli.value_types import FUNCTION
from mongo_session_service.model.wording import counted, plural

if TYPE_CHECKING:
    from mongo_session_service.transfer import (
        Exported,
        Moved,
        Problem,
        Selection,
        Source,
        Verified,
    )

_AGAIN: Final = "Progress is kept; run the same command again to resume."
_HARMLESS: Final = "Nothing was changed; run the same command again."
_CHECK: Final = "Check that it is the right database, and --prefix, --app and --user."
_EXAMPLE: Final = 74
"""Columns of an example, so that the help fits into 80."""
_MARGIN: Final = 3600
"""Seconds by which an event may be stored later than its own time."""


@contextmanager
def _interruptible(advice: str) -> Iterator[None]:
    """Say what to do after Ctrl-C."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        say(f"\nInterrupted. {advice}")
        raise


def _help(what: str, example: str) -> str:
    """A command's help, with an example that a shell takes as it is shown."""
    text = f"mongo-session-service {example}"
    lines = textwrap.wrap(
        text,
        _EXAMPLE,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{what}\n\n\b\nExample:\n  " + " \\\n  ".join(lines)


def _contents(of: Verified | Exported) -> str:
    sessions, events = counted(of.sessions, "session"), counted(of.events, "event")
    return f"{sessions} with {events} and {counted(of.states, 'shared state')}"


def _show(problem: Problem) -> None:
    warn(f"  {printable(str(problem))}")


class _Kinds(click.Group):
    """Commands for the kinds of sources, one of which stands before the source."""

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and not ctx.resilient_parsing:
            kinds = ", ".join(self.commands)
            example = f"`{ctx.command_path} sqlite old.db`"
            ctx.fail(
                f"{cmd_name!r} is no kind of source ({kinds}). Name it: {example}."
            )
        return super().get_command(ctx, cmd_name)


@click.group("import", cls=_Kinds)
def import_() -> None:
    """Imports the sessions of another store; safe to repeat.

    Sessions that exist here are compared, and missing events are added. So repeat an
    import that was interrupted, or one of a store in use, to catch up.
    """


@click.group(
    "verify", cls=_Kinds, short_help="Compares another store with its import here."
)
def verify_() -> None:
    """Compares another store with its import here, and prints each difference."""


_choices: Final = several(
    dry_run,
    click.option(
        "--on-conflict",
        type=click.Choice(["fail", "skip", "replace"]),
        default="fail",
        show_default=True,
        help="What to do if the target holds something else under an id.",
    ),
    click.option(
        "--on-error",
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help="What to do if something cannot be read or stored.",
    ),
)
_exact: Final = click.option(
    "--exact", is_flag=True, help="Report sessions that only the target has."
)


async def _import(place: Place, kind: sources.Kind, options: dict[str, Any]) -> bool:
    async with place.service() as service:
        from mongo_session_service.transfer import Policies, move

        chosen, is_json = selection(options), options.pop("as_json")
        policies = Policies(
            options.pop("on_conflict"), options.pop("on_error"), options.pop("dry_run")
        )
        async with (
            sources.source_of(kind, options, chosen) as source,
            _progress("Importing", source, chosen) as advance,
        ):
            moved = await move(
                source,
                service,
                chosen,
                policies,
                on_problem=_show,
                on_progress=lambda now: advance(now.read),
            )
        where = place.describe(service)
    again = None
    if not policies.is_dry_run:
        since = datetime.fromtimestamp(moved.started - _MARGIN, UTC)
        again = f"{since:%Y-%m-%dT%H:%M:%SZ}"
    if is_json:
        show_json(_figures(moved) | {"since": again})
    else:
        name = printable(source.name)
        verb = "Would move" if policies.is_dry_run else "Moved"
        events = counted(moved.events, "event")
        click.echo(f"{verb} {events} from {name} to {where}: {_counts_text(moved)}.")
        if again:
            click.echo(f"To catch up later, add --since {again}")
    return _is_any_found(moved, chosen) and moved.is_complete


def _is_any_found(done: Moved | Verified, chosen: Selection) -> bool:
    """Warn of a source without a matching session: something is misspelled."""
    if done.sessions or chosen.since is not None:
        return True
    warn(
        "The source has no matching session. Check that it is the right one, and check"
        " --app and --user."
    )
    return False


@asynccontextmanager
async def _progress(
    verb: str, source: Source, chosen: Selection
) -> AsyncIterator[Callable[[int], None]]:
    """Show how many of a source's events were read, and of how many if it can tell."""
    totals = None if chosen.since else await source.totals(chosen)
    with progress(verb, totals and totals.events, source.share_read) as advance:
        yield advance


def _figures(done: Moved | Verified | Exported) -> dict[str, Any]:
    """Return the counts for JSON; an import's time is told as what it is for."""
    figures = {"sessions": done.sessions, **asdict(done)}
    figures.pop("started", None)
    return figures


def _counts_text(moved: Moved) -> str:
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
    return shown or "nothing"


async def _verify(place: Place, kind: sources.Kind, options: dict[str, Any]) -> bool:
    async with place.service() as service:
        from mongo_session_service.transfer import StoreSource, verify

        chosen, is_exact = selection(options), options.pop("exact")
        is_json = options.pop("as_json")
        async with (
            sources.source_of(kind, options, chosen) as source,
            StoreSource(service) as target,
            _progress("Verifying", source, chosen) as advance,
        ):
            held = await target.totals(replace(chosen, since=None))
            if not held.sessions:  # one cause, told once
                warn(f"The target holds no session of this selection. {_CHECK}")
            verified = await verify(
                source,
                target,
                chosen,
                is_exact=is_exact,
                on_difference=_show if held.sessions else lambda _: None,
                on_progress=lambda now: advance(now.events),
            )
        where = place.describe(service)
    number = verified.differences
    found = counted(number, "difference") if number else "no differences"
    if is_json:
        show_json(_figures(verified))
    else:
        click.echo(f"Compared {_contents(verified)} in {where}: {found}.")
    return _is_any_found(verified, chosen) and verified.is_equal


@click.command(
    "export",
    short_help="Writes sessions as JSON Lines.",
    help=_help(
        "Writes sessions as JSON Lines, the same bytes for the same sessions. The file"
        " is not encrypted, and includes any credentials in events and state.",
        "export mongodb://localhost/adk --to sessions.jsonl.gz",
    ),
)
@uri_argument
@click.option(
    "--to",
    "path",
    type=click.Path(allow_dash=True),
    default="-",
    help="A file, compressed if it ends in .gz; standard output by default.",
)
@click.option(
    "--after-load",
    type=FUNCTION,
    metavar="MODULE:FUNCTION",
    help="The hook that opens what before_store has sealed.",
)
@selection_options
@as_json
@place_options
@click.pass_context
def export_(context: click.Context, /, path: str, **options: Any) -> bool:
    """Export."""
    if options["as_json"] and path == "-":
        raise click.UsageError("--json needs --to: without, the export is the output.")
    with _interruptible(_HARMLESS):
        return until_done(_export(Place.of(context), path, options))


async def _export(place: Place, path: str, options: dict[str, Any]) -> bool:
    async with place.service(after_load=options["after_load"]) as service:
        from mongo_session_service.transfer import StoreSource, export

        chosen = selection(options)
        async with StoreSource(service) as source:
            totals = None if chosen.since else await source.totals(chosen)
            length = totals and totals.events
            # On a terminal, or before "| head", the line would run into the output.
            is_file = path != "-"
            with progress("Exporting", length, is_shown=is_file) as advance:
                exported = await export(
                    source, path, chosen, on_progress=lambda now: advance(now.events)
                )
        origin = place.describe(service)
    if options["as_json"]:
        show_json(_figures(exported))
    else:
        say(f"Exported {_contents(exported)} from {origin}, in clear.")
    if not exported.sessions and chosen.since is None:
        warn(_CHECK)
        return False
    return True


def _add(
    group: click.Group,
    kind: sources.Kind,
    doing: str,
    *,
    run: Callable[[Place, sources.Kind, dict[str, Any]], Coroutine[Any, Any, bool]],
    options: Callable[[Any], Any],
    advice: str,
) -> None:
    """Add the command for one kind of source to ``import`` or ``verify``."""
    example = f"{group.name} {kind.example} mongodb://localhost/adk"
    sentence = f"{doing} {kind.what}."

    @group.command(kind.name, short_help=sentence, help=_help(sentence, example))
    @kind.options
    @uri_argument
    @selection_options
    @options
    @as_json
    @place_options
    @click.pass_context
    def command(context: click.Context, /, **options: Any) -> bool:
        with _interruptible(advice):
            place = Place.of(context)
            return until_done(run(place, kind, sources.prepared(options)))


for _kind in sources.KINDS:
    _add(import_, _kind, "Imports from", run=_import, options=_choices, advice=_AGAIN)
    _add(
        verify_,
        _kind,
        "Verifies against",
        run=_verify,
        options=_exact,
        advice=_HARMLESS,
    )

COMMANDS: Final = (import_, export_, verify_)
