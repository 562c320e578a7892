"""Command ``prune``: removal of sessions that have expired, or are idle or old."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.progress import progress
from mongo_session_service.model.wording import counted


@click.command()
@options.uri_argument
@click.option("--app", help="Only this app.")
@click.option(
    "--idle-for",
    type=options.duration,
    metavar="DURATION",
    help="Remove sessions without an event for this long: 7200s, 12h, 90d.",
)
@click.option(
    "--created-before",
    type=options.past,
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
    """  # noqa: D301  \b is click's sign
    wanted: dict[str, Any] = {"app_name": app, "idle_for": idle_for}
    if created_before is not None:
        wanted["created_before"] = datetime.fromtimestamp(created_before, UTC)
    async with place.service() as service:
        where = await place.where(service, app)
        pruned = await service.prune(dry_run=True, **wanted)
        if not dry_run:
            total = pruned.sessions + pruned.events
            with progress(
                "Pruning", total, what="document", is_shown=not as_json
            ) as advance:
                pruned = await service.prune(
                    lambda now: advance(now.sessions + now.events), **wanted
                )
    if as_json:
        terminal.Screen().write_json(asdict(pruned))
        return
    would = "Would remove" if dry_run else "Removed"
    sessions = counted(pruned.sessions, "session")
    counts = f"{sessions} and {counted(pruned.events, 'event')}"
    terminal.say(f"{would} {counts} in {where}.")
