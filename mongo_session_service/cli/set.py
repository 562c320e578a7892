"""Command ``set``: a session's title, labels and expiry."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.sessions import fields
from mongo_session_service.cli.show import expiry_text
from mongo_session_service.cli.terminal import printable


@click.command("set")
@options.session_arguments
@options.title
@click.option("--no-title", is_flag=True, help="Remove its title.")
@options.labels
@click.option(
    "--no-labels",
    is_flag=True,
    help="Remove its labels, except those that --label sets.",
)
@click.option(
    "--ttl",
    type=options.duration,
    metavar="DURATION",
    help="How long it lives from now on, and again after each event: 7200s, 12h, 7d.",
)
@click.option(
    "--expire-time",
    type=options.future,
    metavar="TIME",
    help="When it expires, whatever happens: ISO 8601, in UTC if it names no zone.",
)
@click.option("--no-expiry", is_flag=True, help="Never let it expire.")
@options.as_json
@options.connected
async def set_session(
    place: options.Place, ids: tuple[str, str, str], *, as_json: bool, **given: Any
) -> None:
    """Changes a session's title, labels or expiry.

    What is not given stays as it is. Labels that are not named stay, unless --no-labels
    is given. Neither state nor events are read or changed.

    \b
    Example:
      mongo-session-service set my_app ada 5f0c --title 'Trip to Turin' --ttl 30d
      mongo-session-service set my_app ada 5f0c --no-labels --label stage=done
    """  # noqa: D301  \b is click's sign
    labels: tuple[tuple[str, str], ...] = given.pop("labels")
    keeps_labels = not given.pop("no_labels")
    changes = _changes(given)
    if not changes and not labels and keeps_labels:
        raise click.UsageError("Nothing to set: give --title, --label or --ttl, say.")
    async with place.service(ids[0]) as service:
        from mongo_session_service.admin import contents
        from mongo_session_service.model.records import session_key

        key = session_key(*ids)
        # Also because a command on a wrong database creates no collections.
        before = await contents.details(service, key)
        if labels or not keeps_labels:
            kept = before.labels if keeps_labels else {}
            changes["labels"] = kept | dict(labels)
        now = await service.update_session(**key.id, **changes)
    if as_json:
        terminal.Screen().write_json(fields(now))
        return
    details = terminal.details_text(now.title, now.labels, expiry_text(now))
    terminal.say(f"Session {printable(now.id)}: {details}.")


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of ``update_session`` for title and expiry.

    Raises:
        UsageError: options contradict each other.
    """
    title, ttl, expires = given["title"], given["ttl"], given["expire_time"]
    if title is not None and given["no_title"]:
        raise click.UsageError("Give either --title or --no-title.")
    if (ttl is not None) + (expires is not None) + given["no_expiry"] > 1:
        message = "Give only one of --ttl, --expire-time and --no-expiry."
        raise click.UsageError(message)
    changes: dict[str, Any] = {}
    if title is not None or given["no_title"]:
        changes["title"] = title
    if ttl is not None:
        changes["ttl"] = ttl
    elif expires is not None:
        changes["expire_time"] = datetime.fromtimestamp(expires, UTC)
    elif given["no_expiry"]:
        changes["expire_time"] = None
    return changes
