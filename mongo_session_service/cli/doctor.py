"""``doctor``: whether MongoDB, and what is kept there, is as it should be."""

from __future__ import annotations

import asyncio
import json
import textwrap
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from mongo_session_service.cli.options import Place, connection_options, uri_argument
from mongo_session_service.cli.terminal import (
    BOLD,
    CYAN,
    GREEN,
    RED,
    YELLOW,
    Line,
    Screen,
    Text,
    json_line,
    printable,
    say,
)

if TYPE_CHECKING:
    from mongo_session_service.admin.doctor import Finding

_STYLES: Final = {"ok": GREEN, "warning": YELLOW, "failed": RED, "unknown": CYAN}
_STATUS, _CHECK = 9, 16  # columns


@click.command(short_help="Checks the server, the user and what is stored.")
@uri_argument
@click.option("--json", "as_json", is_flag=True, help="JSON, one check per line.")
@connection_options
@click.pass_context
def doctor(context: click.Context, *, as_json: bool) -> bool:
    """Checks MongoDB, the user's privileges, and what is stored; changes nothing.

    Up to 10,000 sessions and as many events are all looked at, of more a sample. The
    exit code is 0 if all is well or could be better, and 3 if something has failed.

    \b
    Example:
      mongo-session-service doctor 'mongodb://127.0.0.1:27017/my_db?replicaSet=rs0'
    """  # noqa: D301
    return asyncio.run(_doctor(Place.of(context), as_json=as_json))


async def _doctor(place: Place, *, as_json: bool) -> bool:
    """Show each finding as it comes; whether nothing has failed."""
    screen = Screen()
    found: Counter[str] = Counter()
    async with place.service() as service:
        from mongo_session_service.admin.doctor import examine

        async for finding in examine(service):
            found[finding.status] += 1
            if as_json:
                screen.write(json_line(json.dumps(asdict(finding))))
            else:
                screen.show(*_lines(finding, screen.width))
        if not as_json:
            counted = ", ".join(f"{count} {status}" for status, count in found.items())
            say(f"Database {service.database_name}: {counted}.")
    return not found["failed"]


def _lines(finding: Finding, width: int | None) -> list[Line]:
    """A finding and, below it, what to do about it."""
    margin = _STATUS + _CHECK
    room = 10_000 if width is None else max(width - margin, 20)
    says = textwrap.wrap(printable(finding.says), room) or [""]
    remedy = textwrap.wrap(printable(finding.remedy or ""), room)
    head = [
        Text(f"{finding.status:{_STATUS}}", _STYLES[finding.status]),
        Text(f"{finding.check:{_CHECK}}", BOLD),
        Text(says[0]),
    ]
    indent = Text(" " * margin)
    below = [[indent, Text(each)] for each in says[1:]]
    below += [[indent, Text(each, CYAN)] for each in remedy]
    return [head, *below]
