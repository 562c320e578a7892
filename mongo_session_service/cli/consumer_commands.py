"""Commands ``consumers``: run them, show and replay dead letters, remove and reset."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from mongo_session_service import admin
from mongo_session_service.cli import options, terminal
from mongo_session_service.cli.inspect_commands import time_text
from mongo_session_service.cli.terminal import printable, styled
from mongo_session_service.errors import ConfigurationError, StorageError
from mongo_session_service.model.wording import counted, duration_text

if TYPE_CHECKING:
    from rich.text import Text

    from mongo_session_service.consumers.checkpoint import ConsumerStatus
    from mongo_session_service.consumers.consumer import Consumer
    from mongo_session_service.consumers.dead_letters import DeadLetter
    from mongo_session_service.consumers.handler import Handler
    from mongo_session_service.service import MongoSessionService

logger = logging.getLogger(__name__)

_LATE: Final = 60.0
"""Seconds of lag that no running consumer has: an idle one saves every 15."""
_VERY_LATE: Final = 600.0


@click.group(invoke_without_command=True)
@options.as_json
@options.with_address
async def consumers(address: options.ServiceAddress) -> None:
    """Shows the status of every durable consumer.

    Below the table is what needs attention, and what to do. LAG is how far a
    consumer's checkpoint is behind MongoDB, and SAVED is the checkpoint's age. A
    running consumer saves one every 15 seconds, so its lag stays below that if it has
    handled everything. A lag that grows means that changes come faster than the handler
    returns, or that nobody runs the consumer. It must stay below the time that
    MongoDB's oplog reaches back, or changes are lost. A dead letter is a change that
    the handler failed on in every attempt; the consumer has continued after it.

    \b
    Example:
      mongo-session-service consumers
      mongo-session-service consumers dead-letters billing
      mongo-session-service consumers replay billing --handler my_app:handle
    """
    async with address.open_service() as service:
        found = await service.consumers()
    terminal.show_rows(
        found,
        consumer_row,
        f"Consumers of {address.location}:",
        f"No consumer has read from {address.location}.",
    )
    for each in found if not terminal.shared_options().json else ():
        for line in advice(each):
            terminal.warn(line)


def consumer_row(status: ConsumerStatus) -> dict[str, Text]:
    lag = status.lag_seconds or 0.0
    late = terminal.BAD if lag > _VERY_LATE else terminal.WARNING if lag > _LATE else ""
    return {
        "NAME": styled(status.name, "bold"),
        "APP": styled("all" if status.app_name is None else status.app_name),
        "LAG": styled(duration_text(status.lag_seconds), late),
        "SAVED": styled(duration_text(status.checkpoint_age_seconds), late),
        "DEAD LETTERS": styled(
            status.dead_letters, terminal.BAD if status.dead_letters else ""
        ),
        "RUN BY": styled(
            status.owner or "nobody", "" if status.owner else terminal.WARNING
        ),
    }


def advice(status: ConsumerStatus) -> Iterator[str]:
    """Explain what to do about a consumer that is behind, or has dead letters."""
    name = printable(status.name)
    lag = duration_text(status.lag_seconds)
    is_late = (status.lag_seconds or 0.0) > _LATE
    if not status.is_active:
        behind = f", and it is {lag} behind" if is_late else ""
        yield (
            f"{name}: nobody runs it{behind}. Start the program that does. If nobody"
            f" needs it: `mongo-session-service consumers remove {name}`."
        )
    elif status.is_locked_out:
        yield (
            f"{name}: it waits for a lock of a dead process, which MongoDB ends within"
            " 90 seconds. It would be free at once if both ran as the same user."
        )
    elif status.is_replaying:
        yield f"{name}: it is reading the log from the beginning, so its lag is normal."
    elif is_late:
        yield (
            f"{name}: it is {lag} behind. Its handler is slow, or is repeating a change"
            " that fails: see the log of the program that runs it."
        )
    if status.dead_letters:
        command = f"mongo-session-service consumers dead-letters {name}"
        yield (
            f"{name}: {counted(status.dead_letters, 'dead letter')}. `{command}` shows"
            " why. Repair the handler, then handle them again with"
            " `mongo-session-service consumers replay"
            f" {name} --handler MODULE:FUNCTION`."
        )


_handler_options: Final = options.combine_decorators(
    options.option(
        "--handler MODULE:FUNCTION",
        "Called with each change, as by run(); sought in this directory as well.",
        required=True,
    ),
    options.option(
        "--transactional",
        "Call it with a transaction, as run(transactional=True) does.",
    ),
)


@consumers.command()
@click.argument("name")
@_handler_options
@options.option(
    "--concurrency N",
    "Changes of so many sessions are handled at once.",
    type=click.IntRange(1),
    default=1,
)
@options.option(
    "--max-attempts N",
    "Called so often at most with a change on which it fails.",
    type=click.IntRange(1),
    default=13,
)
@options.option("--app TEXT", "Only this app.")
@options.option(
    "--until-caught-up",
    "End when what was committed before is handled, for cron jobs.",
)
@options.with_address
async def run(
    address: options.ServiceAddress,
    name: str,
    handler: Handler,
    app: str | None,
    **how: Any,
) -> bool:
    """Runs a consumer: calls a function with every change, until it is stopped.

    SIGTERM or Ctrl-C lets it finish and commit what it is handling, and exit with 0; a
    second one ends it at once. If it runs elsewhere already, this process stands by and
    takes over. If the function fails, it is called again, after pauses of 0.1 to 30
    seconds; a change on which it fails for one to two and a half minutes, 13 times, is
    kept as a dead letter. With --until-caught-up the exit code is then 3. It logs to
    stderr, at its end how many changes it has handled and kept. Content that
    before_store has sealed cannot be read here: for it, run a consumer whose service
    has after_load.

    \b
    Example:
      mongo-session-service consumers run billing --handler my_app:handle
    """
    _log_with_times()
    async with address.open_service() as service:
        consumer = service.consumer(name, app_name=app)
        try:
            logger.info("Consumer %r starts in %s.", name, address.location)
            _close_at_signal(consumer)
            kept = await consumer.run(handler, **how)
        except ConfigurationError as error:
            known = {each.name: each.app_name for each in await service.consumers()}
            if known.get(name, app) == app:  # the server's fault, which may pass
                raise
            raise click.UsageError(error.message) from error
    return not (how["until_caught_up"] and kept)


def _log_with_times() -> None:
    """Log with times to stderr, as services do; -v adds details, and -q leaves out."""
    level = "DEBUG" if terminal.shared_options().verbose else "INFO"
    root, library = logging.getLogger(), logging.getLogger("mongo_session_service")
    shown, before = logging.StreamHandler(), library.level
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    shown.setFormatter(logging.Formatter(form))
    root.addHandler(shown)
    for each in [*library.handlers]:  # that of -v would show it once more
        if isinstance(each, options.StderrHandler):
            library.removeHandler(each)
    library.setLevel("WARNING" if terminal.shared_options().quiet else level)
    context = click.get_current_context()
    context.call_on_close(lambda: root.removeHandler(shown))
    context.call_on_close(lambda: library.setLevel(before))


def _close_at_signal(consumer: Consumer) -> None:
    """Let a signal close the consumer, and the next one end this process at once."""
    import asyncio

    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def on_signal(number: int, _: object) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_DFL)
        logger.info("%s: it ends after what is in hand.", signal.Signals(number).name)
        asyncio.run_coroutine_threadsafe(consumer.close(), loop)

    # Not the loop's own handlers, which wait for a handler that blocks the loop.
    for each in signals:
        signal.signal(each, on_signal)


@consumers.command()
@click.argument("name")
@options.removal_options
@options.with_address
async def remove(address: options.ServiceAddress, name: str) -> None:
    """Removes a consumer that nobody runs: its checkpoint and its dead letters.

    It shows what goes, and asks; --yes answers for scripts. Run again, the name begins
    as a new one.

    \b
    Example:
      mongo-session-service consumers remove billing
    """
    async with address.open_service() as service:
        status = await _consumer_status(service, name, address)
        letters = counted(status.dead_letters, "dead letter")
        what = (
            f"the checkpoint and {letters} of {printable(name)} in {address.location}"
        )
        options.confirm(f"This removes {what}.")
        if not terminal.shared_options().dry_run:
            async with admin.consumer_places.claimed(service, status) as checkpoint:
                await checkpoint.delete_name()
    terminal.show_result(
        {"name": name, "dead_letters": status.dead_letters},
        f"{options.did('remove')} {what}.",
    )


@consumers.command()
@click.argument("name")
@options.option(
    "--to now|beginning|TIME",
    "Where it reads on; TIME is ISO 8601, and as recent as MongoDB's oplog.",
    default="now",
)
@options.removal_options
@options.with_address
async def reset(
    address: options.ServiceAddress,
    name: str,
    to: Literal["now", "beginning"] | float,
) -> None:
    """Sets where a consumer that nobody runs reads on.

    It shows what follows, and asks; --yes answers for scripts. What it has handled
    after that place comes again; what it has not handled before never comes. Dead
    letters stay.

    \b
    Example:
      mongo-session-service consumers reset billing --to beginning --dry-run
    """
    async with address.open_service() as service:
        status = await _consumer_status(service, name, address)
        place = await admin.consumer_places.start_place(service, to)
        start, events = str(to), None if isinstance(to, float) else 0
        if isinstance(to, float):
            start = f"{datetime.fromtimestamp(to, UTC):%Y-%m-%dT%H:%M:%SZ}"
            effect = f"reads all changes since {start}"
        elif to == "beginning":
            events = await admin.consumer_places.count_log(service, status.app_name)
            effect = f"reads the whole log again: {counted(events, 'event')}"
        else:
            behind = duration_text(status.lag_seconds)
            effect = f"reads nothing again, and skips the last {behind}"
        what = f"{printable(name)} in {address.location} {effect}"
        options.confirm(f"Then {what}.")
        if not terminal.shared_options().dry_run:
            async with admin.consumer_places.claimed(service, status) as checkpoint:
                await checkpoint.move_to(place)
    terminal.show_result(
        {"name": name, "to": start, "events": events},
        f"{'Then' if terminal.shared_options().dry_run else 'From now on'} {what}.",
    )


async def _consumer_status(
    service: MongoSessionService, name: str, address: options.ServiceAddress
) -> ConsumerStatus:
    """Read the status of a consumer; refuse a name that none has."""
    statuses = {each.name: each for each in await service.consumers()}
    if name not in statuses:
        known = ", ".join(map(repr, statuses)) or "none"
        raise click.ClickException(
            f"No consumer is named {name!r} in {address.location}."
            f" Known names: {known}."
        )
    return statuses[name]


@consumers.command(
    "dead-letters", short_help="Lists the changes that a handler failed on."
)
@click.argument("name")
@options.as_json
@options.with_address
async def dead_letters(address: options.ServiceAddress, name: str) -> None:
    """Lists the changes that a handler failed on, the oldest failure first.

    Of an error it shows the type. The change is read where it is stored now, without
    credentials; it is null if it is gone.

    \b
    Example:
      mongo-session-service consumers dead-letters billing --json | jq .error
    """
    async with address.open_service() as service:
        status = await _consumer_status(service, name, address)
        async for letter in service.consumer(name).dead_letters():
            if terminal.shared_options().json:
                terminal.show_json(_letter_fields(letter))
            else:
                terminal.show(_letter_text(letter))
    if not (status.dead_letters or terminal.shared_options().json):
        terminal.print_remark(
            f"Consumer {name!r} has no dead letters in {address.location}."
        )


def _letter_text(letter: DeadLetter) -> Text:
    from mongo_session_service.consumers.dead_letters import owner_of

    revision = letter.id.get("revision")
    number = "" if revision is None else f"r{revision}"
    who = "/".join(owner_of(letter.id))
    return terminal.line(
        styled(time_text(letter.time), terminal.FAINT),
        styled(letter.error, terminal.BAD),
        styled(f"({counted(letter.attempts, 'attempt')})", terminal.FAINT),
        styled(f"{letter.id['kind']} {number} {who}", terminal.FAINT),
    )


def _letter_fields(letter: DeadLetter) -> dict[str, Any]:
    from mongo_session_service.consumers.dead_letters import owner_of
    from mongo_session_service.model.records import SessionKey

    try:
        change = json.loads(letter.change.json_text)
    except StorageError:  # it is gone, or this release of ADK cannot read it
        change = None
    return {
        "consumer": letter.consumer,
        "time": letter.time,
        "kind": letter.id["kind"],
        **dict(zip(SessionKey._fields, owner_of(letter.id), strict=False)),
        "revision": letter.id.get("revision"),
        "attempts": letter.attempts,
        "error": letter.error,
        "change": change,
    }


@consumers.command()
@click.argument("name")
@_handler_options
@options.as_json
@options.with_address
async def replay(
    address: options.ServiceAddress,
    name: str,
    handler: Handler,
    *,
    transactional: bool,
) -> bool:
    """Handles a consumer's dead letters again.

    Those that are handled are removed, and those whose change is gone. The others stay,
    with their new error, and the exit code is 3. The consumer may run meanwhile.
    Content that before_store has sealed cannot be read here: for it, call
    replay_dead_letters() of a consumer whose service has after_load.

    \b
    Example:
      mongo-session-service consumers replay billing --handler my_app:handle
    """
    async with address.open_service() as service:
        await _consumer_status(service, name, address)
        consumer = service.consumer(name)
        handled = await consumer.replay_dead_letters(
            handler, transactional=transactional
        )
        left = (await _consumer_status(service, name, address)).dead_letters
    letters = counted(handled, "dead letter")
    terminal.show_result(
        {"handled": handled, "left": left},
        f"Handled {letters} of {printable(name)} in {address.location}.",
    )
    if left and not terminal.shared_options().json:
        command = f"mongo-session-service consumers dead-letters {printable(name)}"
        terminal.warn(f"{counted(left, 'dead letter')} left: `{command}` shows why.")
    return not left
