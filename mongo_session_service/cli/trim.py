"""Command ``trim``: removal of old events from all sessions of an app."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.progress import progress
from mongo_session_service.model.wording import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mongo_session_service.service import MongoSessionService

_PAGE: Final = 1000
"""Sessions listed at once."""


@click.command()
@click.argument("app_name", metavar="APP")
@click.option(
    "--older-than",
    type=options.duration,
    metavar="DURATION",
    required=True,
    help="Remove events that are older: 7200s, 12h, 90d.",
)
@options.as_json
@options.connected
async def trim(
    place: options.Place, *, app_name: str, older_than: float, as_json: bool
) -> None:
    """Removes old events from all sessions of an app.

    State stays. Of each session it removes the events from the first on, up to one that
    is not older. It keeps function calls together with their responses, and rewinds
    with what they have undone. What was removed cannot be restored.

    It removes a little at a time. So it can run while the service is in use, be
    interrupted and repeated, for example from cron.

    \b
    Example:
      mongo-session-service trim my_app --older-than 90d
    """  # noqa: D301  \b is click's sign
    sessions = trimmed = events = 0
    async with place.service() as service:
        with progress("Trimming", None) as advance:
            async for removed in _trimmed(service, app_name, older_than):
                sessions += 1
                trimmed += removed > 0
                events += removed
                advance(events)
        where = await place.where(service, app_name)
    if as_json:
        counts = {"sessions": sessions, "trimmed": trimmed, "events": events}
        terminal.Screen().write_json(counts)
        return
    of = f"{trimmed} of {counted(sessions, 'session')}"
    terminal.say(f"Removed {counted(events, 'event')} from {of} in {where}.")


async def _trimmed(
    service: MongoSessionService, app_name: str, older_than: float
) -> AsyncIterator[int]:
    """How many events were removed from each session of an app."""
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
                )
            yield removed
        token = page.next_page_token
        if token is None:
            return
