"""Command ``watch``: changes, printed as they are committed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from mongo_session_service.cli import options, terminal


@click.command()
@options.uri_argument
@options.watched_options
@click.option(
    "--after-revision",
    type=click.IntRange(min=0),
    metavar="N",
    help="Begin with the session's events after this revision, however old.",
)
@options.as_json
@options.connected
async def watch(
    place: options.Place,
    watched: options.Watched,
    after_revision: int | None,
    *,
    as_json: bool,
) -> None:
    """Prints changes as they are committed.

    For one session, it begins with the state and ends when the session is deleted.
    For a user, an app or, without options, the database, it prints what happens from
    now on.

    \b
    Example:
      mongo-session-service watch --app my_app --json | jq .state_delta
    """  # noqa: D301
    if after_revision is not None and watched.session_id is None:
        raise click.UsageError("--after-revision needs --session.")
    screen = terminal.Screen()
    async with place.service(watched.app_name) as service:
        with _while_somebody_reads():
            subscription = service.watch(*watched, after_revision=after_revision)
            async with subscription as changes:
                where = await place.where(service, watched.app_name)
                terminal.say(f"Watching {watched.words} in {where}.")
                async for change in changes:
                    if as_json:
                        screen.write(terminal.json_line(change.json_text))
                    else:
                        known = len(watched.chosen)
                        lines = terminal.change_lines(change, known, screen.width)
                        screen.show(*lines)


@contextmanager
def _while_somebody_reads() -> Iterator[None]:
    """Notice at once that a pipe's reader has gone, rather than with the next change.

    Raises:
        BrokenPipeError: it has gone.
    """
    import asyncio

    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    out = sys.stdout.fileno()
    is_pipe = stat.S_ISFIFO(os.fstat(out).st_mode)
    if task is None or not is_pipe or sys.platform == "win32":
        yield
        return
    has_gone = False

    def leave() -> None:
        nonlocal has_gone
        has_gone = True
        loop.remove_reader(out)
        task.cancel()

    loop.add_reader(out, leave)
    try:
        yield
    except asyncio.CancelledError:
        if has_gone:
            task.uncancel()
            raise BrokenPipeError from None
        raise
    finally:
        loop.remove_reader(out)
