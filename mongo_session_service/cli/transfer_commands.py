"""Commands that move sessions: ``import``, ``verify`` and ``export``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click
from typing_extensions import override

from mongo_session_service.cli.options import (
    ServiceAddress,
    address_options,
    as_json,
    combine_decorators,
    dry_run,
    option,
    parse_function,
    selection,
    selection_options,
    uri_argument,
    with_password,
)
from mongo_session_service.cli.terminal import (
    print_remark,
    printable,
    progress,
    shared_options,
    show_json,
    show_result,
    warn,
)
from mongo_session_service.errors import ConflictError, TransferError
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
_CHECK: Final = "Check the database, --prefix, --app, --user and --session."
_MARGIN: Final = 3600
"""Seconds by which an event may be stored later than its own time."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    what: str
    example: str
    options: Callable[[Any], Any]
    source: str
    """The class in :mod:`mongo_session_service.transfer`."""


_source = click.argument(
    "source",
    envvar="SOURCE_URL",
    callback=lambda _, __, url: with_password(url, os.environ.get("SOURCE_PASSWORD")),
)
_path = click.argument("source", metavar="PATH", type=click.Path(allow_dash=True))

KINDS: Final = (
    Kind(
        "sql",
        "ADK's DatabaseSessionService",
        "sql postgresql://me@localhost/adk",
        _source,
        "SqlSource",
    ),
    Kind(
        "sqlite", "ADK's SqliteSessionService", "sqlite adk.db", _path, "SqliteSource"
    ),
    Kind(
        "adk-mongodb",
        "ADK's MongoDbSessionService",
        "adk-mongodb mongodb://localhost/old",
        combine_decorators(
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
        click.argument("factory", metavar="MODULE:FUNCTION", type=parse_function),
        "ServiceSource",
    ),
)


@contextmanager
def _interruptible(advice: str) -> Iterator[None]:
    """Print what to do after Ctrl-C, and add the option that continues to an error."""
    try:
        yield
    except (KeyboardInterrupt, click.Abort):
        print_remark(f"\nInterrupted. {advice}")
        raise
    except TransferError as error:
        if not error.hint:
            raise
        is_conflict = isinstance(error, ConflictError)
        option = "--on-conflict" if is_conflict else "--on-error"
        text = f"{printable(error.message)} To continue without it: {option} skip."
        raise click.ClickException(text) from error


def _counted_contents(of: Verified | Exported) -> str:
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

    Sessions that exist here are compared, and missing events are added; nothing is
    replaced. So repeat an import that was interrupted, or one of a store in use, to
    catch up.
    """


@click.group(
    "verify", cls=_Kinds, short_help="Compares another store with its import here."
)
def verify_() -> None:
    """Compares another store with its import here, and prints each difference."""


_after_load: Final = option(
    "--after-load MODULE:FUNCTION", "The hook that opens what before_store has sealed."
)
_hooks: Final = combine_decorators(
    option("--before-store MODULE:FUNCTION", "The hook that seals what is stored."),
    _after_load,
)


def _choice(name: str, when: str) -> Callable[[Any], Any]:
    return click.option(
        name,
        type=click.Choice(["fail", "skip"]),
        default="fail",
        show_default=True,
        help=f"What to do if {when}.",
    )


_on_error: Final = _choice("--on-error", "something cannot be read or stored")
_choices: Final = combine_decorators(
    dry_run,
    _hooks,
    _choice("--on-conflict", "the target holds something else under an id"),
    _on_error,
)
_exact: Final = combine_decorators(
    option("--exact", "Report sessions that only the target has."),
    _hooks,
)


def _pop_hooks(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options.pop(name) for name in ("before_store", "after_load")}


async def _import(address: ServiceAddress, kind: Kind, options: dict[str, Any]) -> bool:
    async with address.open_service(**_pop_hooks(options)) as service:
        from mongo_session_service.transfer import Policies, move

        chosen = selection(options)
        policies = Policies(
            options.pop("on_conflict"),
            options.pop("on_error"),
            shared_options().dry_run,
        )
        async with (
            _source_of(kind, options, chosen) as source,
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
    again = None
    if not policies.is_dry_run:
        since = datetime.fromtimestamp(moved.started - _MARGIN, UTC)
        again = f"{since:%Y-%m-%dT%H:%M:%SZ}"
    if shared_options().json:
        show_json(_result_fields(moved) | {"since": again})
    else:
        name = printable(source.name)
        verb = "Would move" if policies.is_dry_run else "Moved"
        events = counted(moved.events, "event")
        click.echo(
            f"{verb} {events} from {name} to {address.location}: {_counts_text(moved)}."
        )
        if again and kind.name != "jsonl":  # which does not change
            click.echo(f"To catch up later, add --since {again}")
    if is_left := bool(chosen.sessions and moved.ahead):
        warn("To go back to the source, `erase` the session first: the rest is lost.")
    return _is_any_found(moved, chosen) and moved.is_complete and not is_left


def _is_any_found(done: Moved | Verified, chosen: Selection) -> bool:
    """Warn of a source without a matching session: something is misspelled."""
    if done.sessions or chosen.since is not None:
        return True
    warn(
        "The source has no matching session. Check that it is the right one, and check"
        " --app, --user and --session."
    )
    return False


@asynccontextmanager
async def _progress(
    verb: str, source: Source, chosen: Selection, *, is_shown: bool = True
) -> AsyncIterator[Callable[[int], None]]:
    total = await source.count_events(chosen)
    with progress(verb, total, source.share_read, is_shown=is_shown) as advance:
        yield advance


def _result_fields(done: Moved | Verified | Exported) -> dict[str, Any]:
    figures = {"sessions": done.sessions, **asdict(done)}
    for name in ("started", "unread"):  # a remark has that
        figures.pop(name, None)
    return figures


def _counts_text(moved: Moved) -> str:
    states_ahead = f"{plural(moved.ahead_states, 'shared state')} changed here"
    states_left_out = f"{plural(moved.skipped_states, 'shared state')} left out"
    counts = {
        "new": moved.new,
        "caught up": moved.caught_up,
        "unchanged": moved.unchanged,
        "continued here": moved.ahead,
        "expired, left out": moved.expired,
        "left out for a conflict": moved.skipped,
        plural(moved.states, "shared state"): moved.states,
        states_ahead: moved.ahead_states,
        states_left_out: moved.skipped_states,
        plural(moved.problems, "problem"): moved.problems,
    }
    shown = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)
    return shown or "nothing"


async def _verify(address: ServiceAddress, kind: Kind, options: dict[str, Any]) -> bool:
    async with address.open_service(**_pop_hooks(options)) as service:
        from mongo_session_service.transfer import StoreSource, verify

        chosen, is_exact = selection(options), options.pop("exact")
        async with (
            _source_of(kind, options, chosen) as source,
            StoreSource(service) as target,
            _progress("Verifying", source, chosen) as advance,
        ):
            async with aclosing(target.keys(replace(chosen, since=None))) as keys:
                has_any = await anext(keys, None) is not None
            if not has_any:  # one cause, named once
                warn(f"The target holds no session of this selection. {_CHECK}")
            verified = await verify(
                source,
                target,
                chosen,
                is_exact=is_exact,
                on_difference=_show if has_any else lambda _: None,
                on_progress=lambda now: advance(now.events),
            )
    number = verified.differences
    found = counted(number, "difference") if number else "no differences"
    if shared_options().json:
        show_json(_result_fields(verified))
    else:
        click.echo(
            f"Compared {_counted_contents(verified)} in {address.location}: {found}."
        )
    return _is_any_found(verified, chosen) and verified.is_equal


@click.command("export", short_help="Writes sessions as JSON Lines.")
@uri_argument
@click.option(
    "--to",
    "path",
    type=click.Path(allow_dash=True),
    default="-",
    help="A file, compressed if it ends in .gz; standard output by default.",
)
@_after_load
@_on_error
@selection_options
@as_json
@address_options
def export_(path: str, **options: Any) -> bool:
    """Writes sessions as JSON Lines, the same bytes for the same sessions.

    The file is not encrypted, and includes any credentials in events and state.

    \b
    Example:
      mongo-session-service export mongodb://localhost/adk --to sessions.jsonl.gz
    """
    import asyncio

    if shared_options().json and path == "-":
        raise click.UsageError("--json needs --to: without, the export is the output.")
    with _interruptible(_HARMLESS):
        return asyncio.run(_export(ServiceAddress.named(), path, options))


async def _export(address: ServiceAddress, path: str, options: dict[str, Any]) -> bool:
    async with address.open_service(after_load=options["after_load"]) as service:
        from mongo_session_service.transfer import StoreSource, export

        chosen = selection(options)
        on_problem = _show if options["on_error"] == "skip" else None
        # On a terminal, or before "| head", the line would run into the output.
        is_file = path != "-"
        async with (
            StoreSource(service) as source,
            _progress("Exporting", source, chosen, is_shown=is_file) as advance,
        ):
            exported = await export(
                source,
                path,
                chosen,
                on_problem=on_problem,
                on_progress=lambda now: advance(now.events),
            )
    if exported.unread:
        events = counted(exported.unread, "event")
        warn(f"{events} that this release of ADK cannot read: exported as stored.")
    show_result(
        _result_fields(exported),
        f"Exported {_counted_contents(exported)} from {address.location}, not"
        " encrypted.",
    )
    if not exported.sessions and chosen.since is None:
        warn(_CHECK)
        return False
    return not exported.problems


def _add(
    group: click.Group,
    kind: Kind,
    doing: str,
    *,
    run: Callable[[ServiceAddress, Kind, dict[str, Any]], Coroutine[Any, Any, bool]],
    options: Callable[[Any], Any],
    advice: str,
) -> None:
    sentence = f"{doing} {kind.what}."
    example = f"mongo-session-service {group.name} {kind.example}"
    text = f"{sentence}\n\n\b\nExample:\n  {example}"

    @group.command(kind.name, short_help=sentence, help=text)
    @kind.options
    @uri_argument
    @selection_options
    @options
    @as_json
    @address_options
    def command(**options: Any) -> bool:
        import asyncio

        if "factory" in options and not options["apps"]:
            message = "Name the apps with --app: a session service does not list them."
            raise click.UsageError(message)
        with _interruptible(advice):
            address = ServiceAddress.named()
            return asyncio.run(run(address, kind, options))


def _source_of(
    kind: Kind, options: dict[str, Any], chosen: Selection
) -> AbstractAsyncContextManager[Source]:
    from mongo_session_service import transfer
    from mongo_session_service.transfer.sources import source_of_factory

    if "factory" in options:
        return source_of_factory(options["factory"], chosen.apps)
    own = {name.removeprefix("source_"): value for name, value in options.items()}
    source: Source = getattr(transfer, kind.source)(own.pop("source"), **own)
    return source


for _kind in KINDS:
    _add(import_, _kind, "Imports from", run=_import, options=_choices, advice=_AGAIN)
    _add(
        verify_,
        _kind,
        "Verifies against",
        run=_verify,
        options=_exact,
        advice=_HARMLESS,
    )
