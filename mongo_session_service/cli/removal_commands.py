"""Commands that remove sessions, events or their content, such as ``erase``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.terminal import printable
from mongo_session_service.cli.value_types import DURATION, PAST_TIME
from mongo_session_service.model.wording import counted

if TYPE_CHECKING:
    from mongo_session_service.model.results import Erased
    from mongo_session_service.service import MongoSessionService

_PAGE: Final = 1000
"""Sessions listed at once."""
_ERASED_THINGS: Final = {
    "sessions": "session",
    "events": "event",
    "user_states": "user state",
    "app_states": "app state",
    "dead_letters": "dead letter",
    "checkpoints": "checkpoint",
}
"""Names of what an erasure counts."""


@click.command()
@click.argument("app_name", metavar="APP")
@click.option(
    "--older-than",
    type=DURATION,
    metavar="DURATION",
    required=True,
    help="Remove events that are older: 7200s, 12h, 90d.",
)
@options.dry_run
@options.as_json
@options.connected
async def trim(
    place: options.Place,
    *,
    app_name: str,
    older_than: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Removes old events from all sessions of an app.

    State stays. Of each session it removes the events from the first on, up to one that
    is not older. It keeps function calls together with their responses, and rewinds
    with what they have undone. What was removed cannot be restored.

    It removes a little at a time. So it can run while the service is in use, be
    interrupted and repeated, for example from cron.

    \b
    Example:
      mongo-session-service trim my_app --older-than 90d --dry-run
    """  # noqa: D301  \b is click's sign
    sessions = trimmed = events = 0
    async with place.service() as service:
        trimming = _trim_sessions(service, app_name, older_than, dry_run=dry_run)
        with terminal.progress("Trimming", None, is_shown=not as_json) as advance:
            async for removed in trimming:
                sessions += 1
                trimmed += removed > 0
                events += removed
                advance(events)
        where = place.describe(service)
    if as_json:
        counts = {"sessions": sessions, "trimmed": trimmed, "events": events}
        terminal.show_json(counts)
        return
    of = f"{trimmed} of {counted(sessions, 'session')}"
    done = "Would remove" if dry_run else "Removed"
    terminal.say(f"{done} {counted(events, 'event')} from {of} in {where}.")


@click.command()
@options.session_arguments
@click.argument("event_ids", nargs=-1, metavar="[EVENT]...")
@click.option("--invocation", metavar="ID", help="All events of this invocation.")
@click.option(
    "--replacement",
    default="[redacted]",
    show_default=True,
    metavar="TEXT",
    help="What stands in the place of texts and values.",
)
@click.option(
    "--state", is_flag=True, help="Replace values in state that the events have set."
)
@click.option("--forks", is_flag=True, help="Do the same in forks of the session.")
@options.dry_run
@options.as_json
@options.connected
async def redact(
    place: options.Place,
    ids: tuple[str, str, str],
    event_ids: tuple[str, ...],
    invocation: str | None,
    *,
    dry_run: bool,
    as_json: bool,
    **how: Any,
) -> None:
    """Replaces the content of events for ever, and leaves the events.

    Texts, arguments, responses, files and values that were set are gone then; ids,
    authors, times and the names of functions stay. Backups and exports are not
    reached, forks only with --forks. `show --json` has the ids of events.

    \b
    Example:
      mongo-session-service redact my_app ada 5f0c 0c1f --dry-run
      mongo-session-service redact my_app ada 5f0c --invocation e-77 --state
    """  # noqa: D301
    if bool(event_ids) == bool(invocation):
        raise click.UsageError("Name events, or an --invocation.")
    async with place.service(ids[0]) as service:
        from mongo_session_service.admin import contents
        from mongo_session_service.errors import InvalidInputError
        from mongo_session_service.model.records import session_key

        key = session_key(*ids)
        wanted, text = invocation or event_ids, how["replacement"]
        try:
            found, everywhere = [
                await contents.redactable(service, key, wanted, text, forks=forks)
                for forks in (how["forks"], True)
            ]
        except InvalidInputError as error:
            hint = "`mongo-session-service show APP USER SESSION --json` has the ids."
            raise click.ClickException(f"{error.message} {hint}") from error
        count = found.events
        if not dry_run:
            count = await service.redact_events(
                **key.id, event_ids=event_ids or None, invocation_id=invocation, **how
            )
    if copies := everywhere.events - found.events:
        terminal.warn(f"Copies in forks: {counted(copies, 'event')}. See --forks.")
    if as_json:
        terminal.show_json({"events": count, "state_keys": found.state_keys})
        return
    done = "Would redact" if dry_run else "Redacted"
    terminal.say(f"{done} {counted(count, 'event')}.")
    if found.state_keys:
        names = ", ".join(map(printable, found.state_keys))
        is_done = how["state"] and not dry_run
        said = "Replaced in state" if is_done else "State has values of them"
        terminal.say(f"{said}: {names}." + ("" if how["state"] else " See --state."))


async def _trim_sessions(
    service: MongoSessionService, app_name: str, older_than: float, *, dry_run: bool
) -> AsyncIterator[int]:
    """Trim each session of an app, and yield how many events that removes."""
    from google.adk.errors.session_not_found_error import SessionNotFoundError

    token = None
    while True:
        page = await service.find_sessions(
            app_name=app_name, with_state=False, limit=_PAGE, page_token=token
        )
        for each in page.sessions:
            removed = 0
            with suppress(SessionNotFoundError):  # it was deleted meanwhile
                removed = await service.trim_session(
                    app_name=app_name,
                    user_id=each.user_id,
                    session_id=each.id,
                    older_than=older_than,
                    dry_run=dry_run,
                )
            yield removed
        token = page.next_page_token
        if token is None:
            return


@click.command()
@options.uri_argument
@click.option("--app", help="Only this app.")
@click.option(
    "--idle-for",
    type=DURATION,
    metavar="DURATION",
    help="Remove sessions without an event for this long: 7200s, 12h, 90d.",
)
@click.option(
    "--created-before",
    type=PAST_TIME,
    metavar="TIME",
    help="Remove sessions created before this ISO 8601 time.",
)
@options.dry_run
@options.as_json
@options.connected
async def prune(
    place: options.Place,
    app: str | None,
    idle_for: float | None,
    created_before: float | None,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Removes sessions that have expired, with their events.

    An expired session is invisible at once; this command frees its space. It also
    removes what interrupted deletes have left. App and user state are kept.

    With --idle-for, --created-before or both, it removes the sessions that are idle,
    old, or both, instead; but none that has an expiry of its own.

    It removes a little at a time. So it can run while the service is in use, be
    interrupted and repeated, and run in several places, for example from cron.

    \b
    Example:
      mongo-session-service prune --app my_app --idle-for 90d --dry-run
      0 * * * *  mongo-session-service prune     # in a crontab: every hour
    """  # noqa: D301
    wanted: dict[str, Any] = {"app_name": app, "idle_for": idle_for}
    if created_before is not None:
        wanted["created_before"] = datetime.fromtimestamp(created_before, UTC)
    async with place.service() as service:
        where = place.describe(service)
        pruned = await service.prune(dry_run=True, **wanted)
        if not dry_run:
            total = pruned.sessions + pruned.events
            with terminal.progress(
                "Pruning", total, what="document", is_shown=not as_json
            ) as advance:
                pruned = await service.prune(
                    lambda now: advance(now.sessions + now.events), **wanted
                )
    if as_json:
        terminal.show_json(asdict(pruned))
        return
    would = "Would remove" if dry_run else "Removed"
    sessions = counted(pruned.sessions, "session")
    counts = f"{sessions} and {counted(pruned.events, 'event')}"
    terminal.say(f"{would} {counts} in {where}.")


@click.group()
def erase() -> None:
    """Erases a user, an app or a session, after saying what will go.

    It says what will go, and asks; --yes answers for scripts. It removes a little at a
    time. If it is interrupted, run it again: it erases the rest.

    \b
    Example:
      mongo-session-service erase user my_app ada --dry-run
      mongo-session-service erase session my_app ada 5f0c --yes
    """  # noqa: D301


@erase.command("user")
@click.argument("app", metavar="APP")
@click.argument("user", metavar="USER")
@options.removal_options
@options.connected
async def erase_user(place: options.Place, app: str, user: str, **how: bool) -> None:
    """Erases a user of an app.

    Sessions, events and state are removed, and what consumers have kept. Afterwards no
    collection contains the user's id. State of the app stays.

    \b
    Example:
      mongo-session-service erase user my_app ada
    """  # noqa: D301
    await _erase(place, (app, user), **how)


@erase.command("app")
@click.argument("app", metavar="APP")
@options.removal_options
@options.connected
async def erase_app(place: options.Place, app: str, **how: bool) -> None:
    """Erases an app, with all its users.

    Its state and the consumers of its changes are removed as well. Stop those consumers
    before: a running one ends with LeaseLostError.

    \b
    Example:
      mongo-session-service erase app my_app
    """  # noqa: D301
    await _erase(place, (app,), **how)


@erase.command("session")
@options.session_arguments
@options.removal_options
@options.connected
async def erase_session(
    place: options.Place, ids: tuple[str, str, str], **how: bool
) -> None:
    """Erases a session and its events; state of its user and app stays.

    \b
    Example:
      mongo-session-service erase session my_app ada 5f0c
    """  # noqa: D301
    await _erase(place, ids, **how)


async def _erase(
    place: options.Place,
    ids: tuple[str, ...],
    *,
    is_agreed: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Say what will go, ask, and erase it."""
    async with place.service() as service:
        from mongo_session_service.admin import contents

        erased = await contents.erasable(service, *ids)
        what = f"{_describe(ids)} in {place.describe(service)}"
        if dry_run:
            erased = erased or contents.NOTHING
            terminal.say(f"Would erase {_counts_text(erased) or 'nothing'}: {what}.")
        else:
            erased = await _erase_found(service, ids, erased, what, is_agreed=is_agreed)
    if as_json:
        terminal.show_json(asdict(erased))


async def _erase_found(
    service: MongoSessionService,
    ids: tuple[str, ...],
    found: Erased | None,
    what: str,
    *,
    is_agreed: bool,
) -> Erased:
    from asyncio import CancelledError

    from mongo_session_service.admin import contents
    from mongo_session_service.model.records import SessionKey

    erased = contents.NOTHING
    if counts := _counts_text(found or erased):
        plan = f"This erases {what}, for ever: {counts}."
        options.require_agreement(plan, is_agreed=is_agreed)
        if is_agreed:
            terminal.say(plan)
    if found is not None:
        try:
            erased = await contents.erase(service, *ids) or found
        except CancelledError:
            terminal.warn(
                "Interrupted: a part may be erased. Run it again for the rest."
            )
            raise
    # An app or user is looked through anyway, for what a crash has left of it.
    if gone := _counts_text(erased):
        terminal.say(f"Erased {gone}.")
    elif found is None or len(ids) < len(SessionKey._fields):
        terminal.warn(f"Nothing was stored about {what}.")
    else:
        terminal.say(f"Erased what an interrupted erasure had left of {what}.")
    return erased


def _describe(ids: tuple[str, ...]) -> str:
    """Name an app, a user of it or a session."""
    match [printable(each) for each in ids]:
        case [app]:
            return f"app {app}"
        case [app, user]:
            return f"user {user} of app {app}"
        case shown:
            return f"session {'/'.join(shown)}"


def _counts_text(erased: Erased) -> str:
    counts = asdict(erased)
    return ", ".join(
        counted(counts[name], noun)
        for name, noun in _ERASED_THINGS.items()
        if counts[name]
    )
