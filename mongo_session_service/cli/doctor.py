"""Command ``doctor``: checks of MongoDB, the user's privileges and the data."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from mongo_session_service.cli import options, terminal

if TYPE_CHECKING:
    from rich.table import Table

    from mongo_session_service.admin.doctor import Finding

_STYLES: Final = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command(short_help="Checks the server, the user and what is stored.")
@options.uri_argument
@options.as_json
@options.connected
async def doctor(place: options.Place, *, as_json: bool) -> bool:
    """Checks MongoDB, the user's privileges, and what is stored; changes nothing.

    It reads up to 10,000 sessions and as many events; if there are more, a sample. The
    exit code is 3 if a check has failed, and otherwise 0, even after warnings.

    \b
    Example:
      mongo-session-service doctor 'mongodb://127.0.0.1:27017/adk?replicaSet=rs0'
    """  # noqa: D301
    screen = terminal.Screen()
    found: Counter[str] = Counter()
    async with place.service() as service:
        from mongo_session_service.admin.doctor import examine

        async for finding in examine(service):
            found[finding.status] += 1
            if as_json:
                screen.write_json(asdict(finding))
            else:
                screen.show(_row(finding))
        if not as_json:
            counted = ", ".join(f"{count} {status}" for status, count in found.items())
            terminal.say(f"{counted}, in {await place.where(service)}.")
    return not found["failed"]


def _row(finding: Finding) -> Table:
    """A finding and, below it, what to do about it."""
    from rich.table import Table
    from rich.text import Text

    says = Text(terminal.printable(finding.says))
    if finding.remedy:
        says.append("\n").append(terminal.printable(finding.remedy), "cyan")
    row = Table.grid()
    style = _STYLES.get(finding.status, "cyan")
    row.add_column(min_width=9, no_wrap=True, style=style)
    row.add_column(min_width=16, no_wrap=True, style="bold")
    row.add_column(overflow="fold")
    row.add_row(f"{finding.status} ", f"{finding.check} ", says)
    return row
