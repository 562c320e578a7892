"""Command ``doctor``: checks of MongoDB, the user's privileges and the data."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from mongo_session_service.cli.options import Place, connection_options, uri_argument
from mongo_session_service.cli.terminal import Screen, json_line, printable, say

if TYPE_CHECKING:
    from rich.table import Table

    from mongo_session_service.admin.doctor import Finding

_STYLES: Final = {
    "ok": "green",
    "warning": "yellow",
    "failed": "red",
    "unknown": "cyan",
}
_STATUS, _CHECK = 9, 16  # columns


@click.command(short_help="Checks the server, the user and what is stored.")
@uri_argument
@click.option("--json", "as_json", is_flag=True, help="JSON, one check per line.")
@connection_options
@click.pass_context
def doctor(context: click.Context, *, as_json: bool) -> bool:
    """Checks MongoDB, the user's privileges, and what is stored; changes nothing.

    It reads up to 10,000 sessions and as many events, and of more only a sample. The
    exit code is 3 if a check has failed, and otherwise 0, even after warnings.

    \b
    Example:
      mongo-session-service doctor 'mongodb://127.0.0.1:27017/my_db?replicaSet=rs0'
    """  # noqa: D301
    return asyncio.run(_doctor(Place.of(context), as_json=as_json))


async def _doctor(place: Place, *, as_json: bool) -> bool:
    """Show each finding at once, and return whether no check has failed."""
    screen = Screen()
    found: Counter[str] = Counter()
    async with place.service() as service:
        from mongo_session_service.admin.doctor import examine

        async for finding in examine(service):
            found[finding.status] += 1
            if as_json:
                screen.write(json_line(json.dumps(asdict(finding))))
            else:
                screen.show(_row(finding))
        if not as_json:
            counted = ", ".join(f"{count} {status}" for status, count in found.items())
            say(f"Database {service.database_name}: {counted}.")
    return not found["failed"]


def _row(finding: Finding) -> Table:
    """A finding and, below it, what to do about it."""
    from rich.table import Table
    from rich.text import Text

    says = Text(printable(finding.says))
    if finding.remedy:
        says.append("\n").append(printable(finding.remedy), "cyan")
    row = Table.grid()
    row.add_column(min_width=_STATUS, no_wrap=True, style=_STYLES[finding.status])
    row.add_column(min_width=_CHECK, no_wrap=True, style="bold")
    row.add_column(overflow="fold")
    row.add_row(f"{finding.status} ", f"{finding.check} ", says)
    return row
