"""Command ``prune``: removal of expired sessions and of what deletes have left."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from mongo_session_service.cli.options import Place, connection_options, uri_argument
from mongo_session_service.cli.terminal import Screen, say
from mongo_session_service.model.wording import counted

if TYPE_CHECKING:
    from mongo_session_service.model.results import Pruned


@click.command()
@uri_argument
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@connection_options
@click.pass_context
def prune(context: click.Context, *, dry_run: bool, as_json: bool) -> None:
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
    asyncio.run(_prune(Place.of(context), dry_run=dry_run, as_json=as_json))


async def _prune(place: Place, *, dry_run: bool, as_json: bool) -> None:
    async with place.service() as service:
        pruned = await service.prunable()
        if not dry_run:
            with _progress(pruned) as show:
                pruned = await service.prune(show)
    if as_json:
        Screen().write(json.dumps(asdict(pruned)))
        return
    would = "Would remove" if dry_run else "Removed"
    sessions = counted(pruned.sessions, "session")
    counts = f"{sessions} and {counted(pruned.events, 'event')}"
    say(f"{would} {counts} in database {service.database_name}.")


@contextmanager
def _progress(expected: Pruned) -> Iterator[Callable[[Pruned], None] | None]:
    """A bar, where there is a terminal to show it."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(
        length=max(_size(expected), 1), label="Pruning", file=sys.stderr
    ) as bar:
        yield lambda pruned: bar.update(_size(pruned) - bar.pos)


def _size(pruned: Pruned) -> int:
    return pruned.sessions + pruned.events
