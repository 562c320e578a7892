"""Command ``doctor``: checks of MongoDB, the user's privileges and the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from mongo_session_service.cli import options, terminal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from mongo_session_service.admin.doctor import Finding

_MARKS: Final = {
    "ok": ("\N{CHECK MARK}", "green"),
    "warning": ("!", "yellow"),
    "failed": ("\N{BALLOT X}", "red"),
    "unknown": ("?", "cyan"),
}


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
    found: list[Finding] = []
    async with place.service() as service:
        from mongo_session_service.admin.doctor import examine

        async for finding in examine(service):
            found.append(finding)
            if as_json:
                screen.write_json(asdict(finding))
            else:
                screen.show(_row(finding))
        if not as_json:
            screen.show(*_to_do(found))
            counts = Counter(each.status for each in found)
            counted = ", ".join(f"{count} {status}" for status, count in counts.items())
            terminal.say(f"{counted}, in {await place.where(service)}.")
    return all(each.status != "failed" for each in found)


def _row(finding: Finding) -> Table:
    """A finding and, below it, a line for each feature that lacks privileges."""
    from rich.table import Table
    from rich.text import Text

    says = Text(terminal.printable(finding.says))
    for line in _lacking(finding):
        says.append(f"\n  {terminal.printable(line)}")
    mark, style = _MARKS[finding.status]
    row = Table.grid()
    row.add_column(min_width=11, no_wrap=True, style=style)
    row.add_column(min_width=16, no_wrap=True, style="bold")
    row.add_column(overflow="fold")
    row.add_row(f"{mark} {finding.status} ", f"{finding.check} ", says)
    return row


def _lacking(finding: Finding) -> Iterator[str]:
    """How many privileges each feature lacks; with ``-v``, which."""
    from mongo_session_service.driver.privileges import needs

    for feature, missing in finding.lacking.items():
        needed = len(needs([feature], "any"))
        yield f"{feature}: {len(missing)} of {needed} missing"
        if terminal.is_told("verbose"):
            yield from (f"  {each}" for each in missing)
    if finding.lacking and not terminal.is_told("verbose"):
        yield "--verbose lists them."


def _to_do(found: Iterable[Finding]) -> Iterator[RenderableType]:
    """What there is to do, each thing once, with the checks that ask for it."""
    from rich.table import Table
    from rich.text import Text

    asking: dict[str, list[str]] = {}
    for finding in found:
        if finding.remedy:
            asking.setdefault(finding.remedy, []).append(finding.check)
    if asking:
        steps = Table.grid(padding=(0, 1))
        steps.add_column(no_wrap=True)
        steps.add_column(overflow="fold")
        for remedy, checks in asking.items():
            step = Text(terminal.printable(remedy), "cyan")
            steps.add_row("-", step.append(f" ({', '.join(checks)})", "dim"))
        yield Text("\nWhat to do:", "bold")
        yield steps
