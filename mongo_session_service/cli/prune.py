"""Command ``prune``: removal of expired sessions and of what deletes have left."""

from __future__ import annotations

from dataclasses import asdict

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.progress import progress
from mongo_session_service.model.wording import counted


@click.command()
@options.uri_argument
@options.dry_run
@options.as_json
@options.connected
async def prune(place: options.Place, *, dry_run: bool, as_json: bool) -> None:
    """Removes sessions that have expired, with their events.

    An expired session is invisible at once; this command frees its space. It also
    removes what interrupted deletes have left. App and user state are kept.

    It removes a little at a time. So it can run while the service is in use, be
    interrupted and repeated, and run in several places, for example from cron.

    \b
    Example:
      mongo-session-service prune --dry-run
      0 * * * *  mongo-session-service prune     # in a crontab: every hour
    """  # noqa: D301  \b is click's sign
    async with place.service() as service:
        pruned = await service.prunable()
        if not dry_run:
            total = pruned.sessions + pruned.events
            with progress(
                "Pruning", total, what="document", is_shown=not as_json
            ) as advance:
                pruned = await service.prune(
                    lambda now: advance(now.sessions + now.events)
                )
        where = await place.where(service)
    if as_json:
        terminal.Screen().write_json(asdict(pruned))
        return
    would = "Would remove" if dry_run else "Removed"
    sessions = counted(pruned.sessions, "session")
    counts = f"{sessions} and {counted(pruned.events, 'event')}"
    terminal.say(f"{would} {counts} in {where}.")
