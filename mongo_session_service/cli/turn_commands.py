"""Commands ``turns``: in which sessions agents run, in any process, and their stop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from mongo_session_service.cli import options, styles, terminal, transcript
from mongo_session_service.cli.terminal import printable, styled
from mongo_session_service.model.wording import json_line

if TYPE_CHECKING:
    from rich.text import Text

    from mongo_session_service.model.results import TurnInfo, TurnPhase

STYLES: Final = {
    "running": styles.GOOD,
    "stopping": styles.WARNING,
    "abandoned": styles.BAD,
    "ended": "",
    "stopped": styles.WARNING,
    "failed": styles.BAD,
}
"""How each status is shown."""


@click.group(invoke_without_command=True)
@click.option("--app", help="Only this app.")
@click.option("--user", help="Only this user.")
@click.option(
    "--status",
    type=click.Choice(list(STYLES)),
    help="Only those with this status. By default all that are running, stopping or"
    " abandoned; of those that are over, each session's last is known.",
)
@options.as_json
@options.connected
async def turns(
    place: options.Place,
    app: str | None,
    user: str | None,
    status: TurnPhase | None,
    *,
    as_json: bool,
) -> None:
    """Lists the turns in which agents run, in any process.

    A turn is abandoned if its process has died. The calls that it has left open are
    answered when the session's next turn begins, or by recover_turns().

    \b
    Example:
      mongo-session-service turns
      mongo-session-service turns --app my_app --status failed --json
      mongo-session-service turns stop my_app ada 5f0c --reason 'too expensive'
    """  # noqa: D301  \b is click's sign
    if user is not None and app is None:
        raise click.UsageError("--user needs --app.")
    async with place.service() as service:
        from mongo_session_service.codec.public_view import json_text

        found = await service.find_turns(app_name=app, user_id=user, status=status)
        where = place.describe(service)
    if as_json:
        for each in found:
            click.echo(json_line(json_text(each._asdict())))
    elif found:
        terminal.say(f"Turns in {where}:")
        terminal.show(terminal.CellRows([_turn_row(each) for each in found]))
    else:
        terminal.say(f"There are no such turns in {where}.")


def _turn_row(turn: TurnInfo) -> dict[str, Text]:
    ago = transcript.duration_text(time.time() - turn.since.timestamp())
    why = ": ".join(filter(None, (turn.error_type, turn.reason)))
    return {
        "SESSION": styled(turn.session_id, "bold"),
        "USER": styled(turn.user_id),
        "APP": styled(turn.app_name),
        "STATUS": styled(turn.status, STYLES[turn.status]),
        "SINCE": styled(f"{ago} ago"),
        "HOST": styled(turn.host),
        "WHY": styled(why),
    }


@turns.command("stop", short_help="Stops the turn of a session.")
@options.session_arguments
@click.option("--reason", help="Why, for those who look at the turn.")
@options.as_json
@options.connected
async def stop_turn(
    place: options.Place,
    ids: tuple[str, str, str],
    reason: str | None,
    *,
    as_json: bool,
) -> None:
    """Stops the turn of a session, in whichever process it runs.

    That process notices within a second, and keeps what was said so far. If no turn is
    running, there is nothing to do.

    \b
    Example:
      mongo-session-service turns stop my_app ada 5f0c --reason 'too expensive'
    """  # noqa: D301
    async with place.service(ids[0]) as service:
        from mongo_session_service.admin import contents
        from mongo_session_service.model.records import session_key

        key = session_key(*ids)
        # First: a command on a wrong database creates no collections.
        await contents.details(service, key)
        was_running = await service.stop_turn(**key.id, reason=reason)
    if as_json:
        terminal.show_json({**key.id, "was_running": was_running})
        return
    said = "was told to stop" if was_running else "is not running"
    terminal.say(f"The turn of session {printable(key.session_id)} {said}.")
