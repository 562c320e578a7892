"""Commands that change sessions, copy them, or remove them or parts of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from mongo_session_service import admin
from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.inspect_commands import (
    details_text,
    iter_sessions,
)
from mongo_session_service.cli.terminal import printable
from mongo_session_service.model.wording import counted

if TYPE_CHECKING:
    from mongo_session_service.model.results import Erased, Pruned
    from mongo_session_service.service import MongoSessionService


@click.command("set")
@options.session_arguments
@options.combine_decorators(*options.details.values(), *options.details_ended)
@options.as_json
@options.with_address
async def set_session(
    address: options.ServiceAddress, app: str, user: str, session: str, **given: Any
) -> None:
    """Changes a session's title, labels or expiry.

    What is not given stays as it is. Labels that are not named stay, unless --no-labels
    is given. Neither state nor events are read or changed.

    \b
    Example:
      mongo-session-service set my_app ada 5f0c --title 'Trip to Turin' --ttl 30d
      mongo-session-service set my_app ada 5f0c --no-labels --label stage=done
    """
    changes = _changed_fields(given)
    async with address.open_with_key(app, user, session) as (service, key):
        before = await admin.stored_contents.load_summary(service, key)
        if "labels" in changes:
            kept = {} if given["no_labels"] else before.labels
            changes["labels"] = kept | dict(given["labels"])
        now = await service.update_session(**key.id, **changes)
    text = f"Session {printable(now.id)}: {details_text(now)}."
    terminal.show_result(now, text)


def _changed_fields(given: dict[str, Any]) -> dict[str, Any]:
    """Return the details that are given, and None for those that end."""
    not_given = (None, (), False)
    changes = {
        name: given[name] for name in options.details if given[name] not in not_given
    }
    ended = [name for name in options.details if given.get(f"no_{name}")]
    if not changes and not ended:
        raise click.UsageError(
            "Nothing to set: give --title, --label or --ttl, for example."
        )
    if len([*changes.keys() & {"ttl", "expire_time"}, *{*ended} & {"expire_time"}]) > 1:
        message = "Give only one of --ttl, --expire-time and --no-expiry."
        raise click.UsageError(message)
    for name in ended:
        if name in changes and name != "labels":
            raise click.UsageError(f"Give either --{name} or --no-{name}.")
    if "expire_time" in changes:
        changes["expire_time"] = datetime.fromtimestamp(changes["expire_time"], UTC)
    return dict.fromkeys(ended) | changes


@click.command()
@click.argument("app_name", metavar="APP")
@options.option(
    "--older-than DURATION",
    "Remove events that are older: 7200s, 12h, 90d.",
    required=True,
)
@options.removal_options
@options.with_address
async def trim(
    address: options.ServiceAddress, *, app_name: str, older_than: float
) -> None:
    """Removes old events from all sessions of an app.

    State stays. Of each session it removes the events from the first on, up to one that
    is not older. It keeps function calls together with their responses, and rewinds
    with what they have undone. What was removed cannot be restored.

    At a terminal it shows what will go, and asks, unless --yes is given. It removes a
    little at a time. So it can run while the service is in use, be interrupted and
    repeated, for example from cron.

    \b
    Example:
      mongo-session-service trim my_app --older-than 90d --dry-run
    """

    def counts_text(counts: dict[str, int]) -> str:
        sessions = f"{counts['trimmed']} of {counted(counts['sessions'], 'session')}"
        events = counted(counts["events"], "event")
        return f"{events} from {sessions} in {address.location}"

    async with address.open_service() as service:
        trimming = partial(_trim_sessions, service, app_name, older_than)
        if options.asks() and (found := await trimming(dry_run=True))["events"]:
            options.confirm(f"This removes {counts_text(found)}, for ever.")
        counts = await trimming(dry_run=terminal.shared_options().dry_run)
    done = f"{options.did('remove')} {counts_text(counts)}."
    nothing = f"App {printable(app_name)} has no sessions in {address.location}."
    terminal.show_result(counts, done if counts["sessions"] else nothing)


@click.command()
@options.session_arguments
@click.argument("event_ids", nargs=-1, metavar="[EVENT]...")
@options.option("--invocation ID", "All events of this invocation.")
@options.option(
    "--replacement TEXT",
    "What stands in the place of texts and values.",
    default="[redacted]",
)
@options.option("--state", "Replace values in state that the events have set.")
@options.option("--forks", "Do the same in forks of the session.")
@options.removal_options
@options.with_address
async def redact(
    address: options.ServiceAddress,
    app: str,
    user: str,
    session: str,
    *,
    event_ids: tuple[str, ...],
    invocation: str | None,
    **how: Any,
) -> None:
    """Replaces the content of events for ever, and leaves the events.

    Texts, arguments, responses, files and values that were set are gone then; ids,
    authors, times and the names of functions stay. Backups and exports are not
    reached, forks only with --forks. `show -v` has the ids of events. At a terminal it
    shows what will go, and asks, unless --yes is given.

    \b
    Example:
      mongo-session-service redact my_app ada 5f0c 0c1f --dry-run
      mongo-session-service redact my_app ada 5f0c --invocation e-77 --state
    """
    if bool(event_ids) == bool(invocation):
        raise click.UsageError("Name events, or an --invocation.")
    async with address.open_with_key(app, user, session) as (service, key):
        from mongo_session_service.errors import InvalidInputError

        wanted, text = invocation or event_ids, how["replacement"]
        try:
            found, everywhere = [
                await admin.stored_contents.preview_redaction(
                    service, key, wanted, text, forks=forks
                )
                for forks in (how["forks"], True)
            ]
        except InvalidInputError as error:
            hint = "`mongo-session-service show APP USER SESSION --json` has the ids."
            raise click.ClickException(f"{error.message} {hint}") from error
        count = found.events
        if count and options.asks():
            whose = options.describe(app, user, session)
            plan = f"This redacts {counted(count, 'event')} of {whose}"
            options.confirm(f"{plan} in {address.location}, for ever.")
        is_dry = terminal.shared_options().dry_run
        if not is_dry:
            count = await service.redact_events(
                **key.id, event_ids=event_ids or None, invocation_id=invocation, **how
            )
    if copies := everywhere.events - found.events:
        terminal.warn(f"Copies in forks: {counted(copies, 'event')}. See --forks.")
    terminal.show_result(
        {"events": count, "state_keys": found.state_keys},
        f"{options.did('redact')} {counted(count, 'event')}.",
    )
    if found.state_keys and not terminal.shared_options().json:
        names = ", ".join(map(printable, found.state_keys))
        is_done = how["state"] and not is_dry
        where = "Replaced in state" if is_done else "State has values of them"
        terminal.print_remark(
            f"{where}: {names}." + ("" if how["state"] else " See --state.")
        )


async def _trim_sessions(
    service: MongoSessionService, app_name: str, older_than: float, *, dry_run: bool
) -> dict[str, int]:
    """Trim each session of an app; return how many there are, and what that removes."""
    from google.adk.errors.session_not_found_error import SessionNotFoundError

    counts = {"sessions": 0, "trimmed": 0, "events": 0}
    with (
        options.noting_interruption(
            lambda: f"removed {counted(counts['events'], 'event')}"
        ),
        terminal.progress("Trimming", None) as advance,
    ):
        async for each in iter_sessions(service, {"app_name": app_name}):
            removed = 0
            with suppress(SessionNotFoundError):  # it was deleted meanwhile
                removed = await service.trim_session(
                    app_name=app_name,
                    user_id=each.user_id,
                    session_id=each.id,
                    older_than=older_than,
                    dry_run=dry_run,
                )
            counts["sessions"] += 1
            counts["trimmed"] += removed > 0
            counts["events"] += removed
            advance(counts["events"])
    return counts


@click.command()
@options.uri_argument
@options.option("--app TEXT", "Only this app.")
@options.option(
    "--idle-for DURATION",
    "Remove sessions without an event for this long: 7200s, 12h, 90d.",
)
@options.option(
    "--created-before TIME",
    "Remove sessions created before this ISO 8601 time.",
    type=options.parse_past_time,
)
@options.removal_options
@options.with_address
async def prune(
    address: options.ServiceAddress,
    app: str | None,
    idle_for: float | None,
    created_before: float | None,
) -> None:
    """Removes sessions that have expired, with their events.

    An expired session is invisible at once; this command frees its space. It also
    removes what interrupted deletes have left. App and user state are kept.

    With --idle-for, --created-before or both, it removes the sessions that are idle,
    old, or both, instead; but none that has an expiry of its own. Then it asks at a
    terminal, after showing what will go, unless --yes is given.

    It removes a little at a time. So it can run while the service is in use, be
    interrupted and repeated, and run in several places, for example from cron.

    \b
    Example:
      mongo-session-service prune --app my_app --idle-for 90d --dry-run
      0 * * * *  mongo-session-service prune     # in a crontab: every hour
    """
    wanted: dict[str, Any] = {"app_name": app, "idle_for": idle_for}
    if created_before is not None:
        wanted["created_before"] = datetime.fromtimestamp(created_before, UTC)
    async with address.open_service() as service:
        pruned = await service.prune(dry_run=True, **wanted)
        # An expired session is gone already for everybody who might be asked.
        if {idle_for, created_before} != {None} and pruned.sessions and options.asks():
            plan = f"This removes {_counts_text(pruned)} in {address.location}"
            options.confirm(f"{plan}, for ever.")
        if not terminal.shared_options().dry_run:
            total = pruned.sessions + pruned.events
            pruned = replace(pruned, sessions=0, events=0)

            def note(now: Pruned) -> None:
                nonlocal pruned
                pruned = now
                advance(now.sessions + now.events)

            with (
                options.noting_interruption(
                    lambda: f"removed {_counts_text(pruned) or 'nothing'}"
                ),
                terminal.progress("Pruning", total, what="document") as advance,
            ):
                pruned = await service.prune(note, **wanted)
    sessions = counted(pruned.sessions, "session")
    counts = f"{sessions} and {counted(pruned.events, 'event')}"
    done = f"{options.did('remove')} {counts} in {address.location}."
    terminal.show_result(pruned, done)


@click.command()
@click.argument("app", metavar="APP")
@click.argument("user", metavar="[USER]", required=False)
@click.argument("session", metavar="[SESSION]", required=False)
@options.removal_options
@options.with_address
async def erase(
    address: options.ServiceAddress, app: str, user: str | None, session: str | None
) -> None:
    """Erases an app, a user of it, or a session.

    Of a session, its events go too, and state of its user and app stays. Of a user,
    all sessions, events and state go, and what consumers have kept. Afterwards no
    collection contains the user's id, except in what other users or their agents have
    said. Of an app, all users go, its state and the consumers of its changes: stop
    those before, since a running one ends with LeaseLostError.

    It shows what will go, and asks; --yes answers for scripts. It removes a little at a
    time. If it is interrupted, run it again: it erases the rest.

    \b
    Example:
      mongo-session-service erase my_app ada --dry-run
      mongo-session-service erase my_app ada 5f0c --yes
    """
    ids = tuple(each for each in (app, user, session) if each is not None)
    async with address.open_service() as service:
        found = await admin.stored_contents.count_erasable(service, *ids)
        what = f"{options.describe(*ids)} in {address.location}"
        if found is not None and user is not None and session is not None:
            what += await _other_versions(service, app, user, session)
        erased = found or admin.stored_contents.NOTHING
        if terminal.shared_options().dry_run:
            counts = _counts_text(erased) or "nothing"
            terminal.print_remark(f"Would erase {counts}: {what}.")
        else:
            if counts := _counts_text(erased):
                plan = f"This erases {what}, for ever: {counts}."
                options.confirm(plan)
                if terminal.shared_options().yes:
                    terminal.print_remark(plan)
            if found is not None:
                with options.noting_interruption(lambda: "a part may be erased"):
                    erased = await admin.stored_contents.erase(service, *ids) or found
            # Of an app or user nothing may be found, and a crash have left something.
            is_rest = found is not None and session is not None
            _print_erased(_counts_text(erased), what, is_rest=is_rest)
    if terminal.shared_options().json:
        terminal.show_json(erased)


async def _other_versions(
    service: MongoSessionService, app: str, user: str, session: str
) -> str:
    from google.adk.errors.session_not_found_error import SessionNotFoundError

    ids = {"app_name": app, "user_id": user, "session_id": session}
    with suppress(SessionNotFoundError):  # it has expired
        if others := len(await service.find_branches(**ids)) - 1:
            return f", but not {counted(others, 'other version')} of its conversation"
    return ""


def _print_erased(counts: str, what: str, *, is_rest: bool) -> None:
    if counts:
        terminal.print_remark(f"Erased {counts}.")
    elif is_rest:
        terminal.print_remark(f"Erased what an interrupted erasure had left of {what}.")
    else:
        terminal.warn(f"Nothing was stored about {what}.")


def _counts_text(removed: Erased | Pruned) -> str:
    counts = asdict(removed).items()
    return ", ".join(
        counted(number, name.removesuffix("s").replace("_", " "))
        for name, number in counts
        if number
    )
