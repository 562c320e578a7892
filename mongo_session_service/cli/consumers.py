"""Command ``consumers``: status and dead letters of durable consumers."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.terminal import styled
from mongo_session_service.errors import StorageError

if TYPE_CHECKING:
    from rich.text import Text

    from mongo_session_service.consumers.dead_letters import DeadLetter
    from mongo_session_service.consumers.status import ConsumerStatus

_LATE: Final = 60.0
"""Seconds of lag that no running consumer has: an idle one saves every 15."""
_VERY_LATE: Final = 600.0


@click.group(invoke_without_command=True)
@options.as_json
@options.connected
async def consumers(place: options.Place, *, as_json: bool) -> None:
    """Shows the status of every durable consumer.

    LAG is how far the checkpoint is behind MongoDB, SAVED is the age of the checkpoint
    (an idle consumer saves one every 15 seconds), and EPOCH counts the readers so far.

    \b
    Example:
      mongo-session-service consumers
      mongo-session-service consumers dead-letters billing
    """  # noqa: D301  \b is click's sign
    screen = terminal.Screen()
    async with place.service() as service:
        found = await service.consumers()
        where = await place.where(service)
    if as_json:
        for each in found:
            screen.write_json(asdict(each))
    elif found:
        terminal.say(f"Consumers of {where}:")
        screen.show(terminal.table([_consumer(each) for each in found]))
    else:
        terminal.say(f"No consumer has read from {where}.")


def _consumer(status: ConsumerStatus) -> dict[str, Text]:
    """A consumer's row; what needs a look is coloured."""
    lag = status.lag_seconds or 0.0
    late = "red" if lag > _VERY_LATE else "yellow" if lag > _LATE else ""
    return {
        "NAME": styled(status.name, "bold"),
        "APP": styled("all" if status.app_name is None else status.app_name),
        "LAG": styled(terminal.duration(status.lag_seconds), late),
        "SAVED": styled(terminal.duration(status.checkpoint_age_seconds), late),
        "EPOCH": styled(status.epoch),
        "REPLAYING": styled("yes", "cyan") if status.is_replaying else styled("no"),
        "DEAD LETTERS": styled(status.dead_letters, "red" * bool(status.dead_letters)),
        "OWNER": styled(status.owner or "nobody", "" if status.owner else "yellow"),
    }


@consumers.command("dead-letters")
@click.argument("name")
@options.as_json
@options.connected
async def dead_letters(place: options.Place, name: str, *, as_json: bool) -> None:
    """Lists the changes that a consumer's handler failed on, the oldest failure first.

    Credentials are left out, and so is the text of an error that may quote them.

    \b
    Example:
      mongo-session-service consumers dead-letters billing --json | jq .change.event
    """  # noqa: D301
    screen = terminal.Screen()
    async with place.service() as service:
        where = await place.where(service)
        names = [each.name for each in await service.consumers()]
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise click.ClickException(
                f"No consumer is named {name!r} in {where}. Known names: {known}."
            )
        letters = service.consumer(name).dead_letters()
        if as_json:
            async for letter in letters:
                screen.write_json(_fields(letter))
            return
        rows = [_dead_letter(letter) async for letter in letters]
    if rows:
        screen.show(terminal.table(rows))
    else:
        terminal.say(f"Consumer {name!r} has no dead letters in {where}.")


def _dead_letter(letter: DeadLetter) -> dict[str, Text]:
    return {
        "TIME": styled(terminal.moment(letter.time)),
        "KIND": styled(letter.id["kind"]),
        "KEY": styled("/".join(_key(letter).values()), "bold"),
        "REVISION": styled(letter.id.get("revision", "")),
        "ATTEMPTS": styled(letter.attempts),
        "ERROR": styled(letter.public_error, "red"),
    }


def _key(letter: DeadLetter) -> dict[str, str]:
    names = ("app_name", "user_id", "session_id")
    found = ((name, letter.id.get(name)) for name in names)
    return {name: part for name, part in found if part is not None}


def _fields(letter: DeadLetter) -> dict[str, Any]:
    try:
        change = json.loads(letter.change.json_text)
    except StorageError:  # this release of ADK cannot read it, or it was too large
        change = None
    return {
        "consumer": letter.consumer,
        "time": letter.time,
        "kind": letter.id["kind"],
        **_key(letter),
        "revision": letter.id.get("revision"),
        "attempts": letter.attempts,
        "error": letter.public_error,
        "change": change,
    }
