"""Commands ``turns``: in which sessions agents run, in any process, and their stop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from mongo_session_service import admin
from mongo_session_service.cli import options, terminal, transcript
from mongo_session_service.cli.terminal import printable, styled

if TYPE_CHECKING:
    from rich.text import Text

    from mongo_session_service.model.results import TurnInfo, TurnPhase

STYLES: Final = {
    "running": terminal.GOOD,
    "stopping": terminal.WARNING,
    "abandoned": terminal.BAD,
    "ended": "",
    "stopped": terminal.WARNING,
    "failed": terminal.BAD,
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
@options.with_address
async def turns(
    address: options.ServiceAddress,
    app: str | None,
    user: str | None,
    status: TurnPhase | None,
) -> None:
    """Lists the turns in which agents run, in any process.

    A turn is abandoned if its process has died. The calls that it has left open are
    answered when the session's next turn begins, or by recover_turns().

    \b
    Example:
      mongo-session-service turns
      mongo-session-service turns --app my_app --status failed --json
      mongo-session-service turns stop my_app ada 5f0c --reason 'too expensive'
    """
    options.check_key(app, user)
    async with address.open_service() as service:
        found = await service.find_turns(app_name=app, user_id=user, status=status)
    if terminal.given().json:
        for each in found:
            terminal.show_public_json(each._asdict())
    elif found:
        terminal.print_remark(f"Turns in {address.location}:")
        terminal.show(terminal.table([_turn_row(each) for each in found]))
    else:
        terminal.print_remark(f"There are no such turns in {address.location}.")


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
@options.with_address
async def stop_turn(
    address: options.ServiceAddress,
    app: str,
    user: str,
    session: str,
    reason: str | None,
) -> None:
    """Stops the turn of a session, in whichever process it runs.

    That process notices within a second, and keeps what was said so far. If no turn is
    running, there is nothing to do.

    \b
    Example:
      mongo-session-service turns stop my_app ada 5f0c --reason 'too expensive'
    """
    async with address.open_with_key(app, user, session) as (service, key):
        # First: a command on a wrong database creates no collections.
        await admin.stored_contents.load_summary(service, key)
        was_running = await service.stop_turn(**key.id, reason=reason)
    said = "was told to stop" if was_running else "is not running"
    terminal.show_result(
        {**key.id, "was_running": was_running},
        f"The turn of session {printable(key.session_id)} {said}.",
    )
