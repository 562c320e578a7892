"""Command ``consumers``: status and dead letters of durable consumers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service.cli.options import Place, connection_options
from mongo_session_service.cli.terminal import (
    Screen,
    duration,
    json_line,
    moment,
    say,
    styled,
    table,
)
from mongo_session_service.errors import StorageError

if TYPE_CHECKING:
    from rich.text import Text

    from mongo_session_service.consumers.dead_letters import DeadLetter
    from mongo_session_service.consumers.status import ConsumerStatus

_LATE: Final = 60.0
"""Seconds of lag that no running consumer has: an idle one saves every 15."""
_VERY_LATE: Final = 600.0

_CONSUMERS: Final = (
    "NAME",
    "APP",
    "LAG",
    "SAVED",
    "EPOCH",
    "REPLAYING",
    "DEAD LETTERS",
    "OWNER",
)
_DEAD_LETTERS: Final = ("TIME", "KIND", "KEY", "REVISION", "ATTEMPTS", "ERROR")

_as_json = click.option("--json", "as_json", is_flag=True, help="JSON, one per line.")


@click.group(invoke_without_command=True)
@_as_json
@connection_options
@click.pass_context
def consumers(context: click.Context, *, as_json: bool) -> None:
    """Shows the status of every durable consumer.

    LAG is how far its checkpoint is behind MongoDB, SAVED how long ago that was saved
    (an idle consumer saves every 15 seconds), and EPOCH how many readers it has had.

    \b
    Example:
      mongo-session-service consumers
      mongo-session-service consumers dead-letters billing
    """  # noqa: D301  \b is click's sign
    if context.invoked_subcommand is None:
        asyncio.run(_consumers(Place.of(context), as_json=as_json))


async def _consumers(place: Place, *, as_json: bool) -> None:
    screen = Screen()
    async with place.service() as service:
        found = await service.consumers()
    if as_json:
        for each in found:
            screen.write(_json(asdict(each)))
    elif found:
        screen.show(table(_CONSUMERS, [_consumer(each) for each in found]))
    else:
        say(f"No consumer has read from database {service.database_name} yet.")


def _consumer(status: ConsumerStatus) -> list[Text]:
    """A consumer's cells; what needs a look is coloured."""
    lag = status.lag_seconds or 0.0
    late = "red" if lag > _VERY_LATE else "yellow" if lag > _LATE else ""
    return [
        styled(status.name, "bold"),
        styled("all" if status.app_name is None else status.app_name),
        styled(duration(status.lag_seconds), late),
        styled(duration(status.checkpoint_age_seconds), late),
        styled(str(status.epoch)),
        styled("yes" if status.is_replaying else "no", "cyan" * status.is_replaying),
        styled(str(status.dead_letters), "red" if status.dead_letters else ""),
        styled("nobody", "yellow") if status.owner is None else styled(status.owner),
    ]


@consumers.command("dead-letters")
@click.argument("name")
@_as_json
@connection_options
@click.pass_context
def dead_letters(context: click.Context, name: str, *, as_json: bool) -> None:
    """Lists the changes that a consumer's handler failed on, the oldest failure first.

    \b
    Example:
      mongo-session-service consumers dead-letters billing --json | jq .change.event
    """  # noqa: D301
    asyncio.run(_dead_letters(Place.of(context), name, as_json=as_json))


async def _dead_letters(place: Place, name: str, *, as_json: bool) -> None:
    screen = Screen()
    async with place.service() as service:
        names = [each.name for each in await service.consumers()]
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise click.ClickException(f"There is no consumer {name!r}, but: {known}.")
        letters = service.consumer(name).dead_letters()
        if as_json:
            async for letter in letters:
                screen.write(_json(_letter_fields(letter)))
            return
        rows = [_letter_cells(letter) async for letter in letters]
    if rows:
        screen.show(table(_DEAD_LETTERS, rows))
    else:
        say(f"Consumer {name!r} has no dead letters.")


def _letter_cells(letter: DeadLetter) -> list[Text]:
    return [
        styled(moment(letter.time)),
        styled(letter.id["kind"]),
        styled("/".join(_key(letter).values()), "bold"),
        styled(str(letter.id.get("revision", ""))),
        styled(str(letter.attempts)),
        styled(letter.error, "red"),
    ]


def _key(letter: DeadLetter) -> dict[str, str]:
    names = ("app_name", "user_id", "session_id")
    found = ((name, letter.id.get(name)) for name in names)
    return {name: part for name, part in found if part is not None}


def _letter_fields(letter: DeadLetter) -> dict[str, Any]:
    try:
        change = json.loads(letter.change.json_text)
    except StorageError:  # an event that this release of ADK cannot read
        change = None
    return {
        "consumer": letter.consumer,
        "time": letter.time,
        "kind": letter.id["kind"],
        **_key(letter),
        "revision": letter.id.get("revision"),
        "attempts": letter.attempts,
        "error": letter.error,
        "change": change,
    }


def _json(fields: dict[str, Any]) -> str:
    return json_line(json.dumps(fields, ensure_ascii=False))
