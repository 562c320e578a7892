"""What the commands have in common: options, progress, errors and exit codes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

import click

from mongo_session_service.cli.connection import noted, placed, said, uri_of, uri_option
from mongo_session_service.cli.program import INTERRUPTED, NOBODY_READS, in_one_line
from mongo_session_service.cli.terminal import duration
from mongo_session_service.errors import MongoSessionServiceError
from mongo_session_service.model.wording import counted

if TYPE_CHECKING:
    from mongo_session_service.transfer.records import Selection, Totals

Command = TypeVar("Command", bound=Callable[..., Any])

FAILED: Final = 1
"""Exit code: it stopped, and says why and how to go on. Wrong usage is click's 2."""
INCOMPLETE: Final = 3
"""Exit code: it came to its end, but something was left out or differs."""

_STEPS: Final = 1000
"""Of a progress bar."""


class Since(click.ParamType[float]):
    """A moment: ISO 8601, in UTC unless it says otherwise, or seconds since 1970."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read it."""
        try:
            return float(value)
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no time like 2026-11-21T04:00:00Z.", param, ctx)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def several(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Decorators as one, shown by --help in their order."""

    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


def _target(context: click.Context, own: click.Parameter, uri: str | None) -> str:
    placed(context, own, uri)
    return uri_of(context)


def _noted(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    return value or said(context, str(parameter.name).removeprefix("target_"))


target_options = several(
    click.argument("target", metavar="[URI]", required=False, callback=_target),
    uri_option,
    click.option(
        "--database",
        "target_database",
        callback=_noted,
        help="By default the URI's, or else adk.",
    ),
    click.option(
        "--prefix",
        "target_prefix",
        default="",
        callback=lambda *given: _noted(*given) or "",
        help="Before the collections' names.",
    ),
    click.option(
        "--ask-password",
        is_flag=True,
        help="Ask for the password of the user in URI; or set $MONGODB_PASSWORD.",
    ),
)
selection_options = several(
    click.option("--app", "apps", multiple=True, help="Only this app; repeatable."),
    click.option("--user", "users", multiple=True, help="Only this user; repeatable."),
    click.option(
        "--since", type=Since(), help="Only sessions updated since, as ISO 8601."
    ),
)
debug_option = click.option(
    "--debug", is_flag=True, callback=noted, help="Show errors in full."
)


def help_of(what: str, example: str) -> str:
    """A command's help, with an example that is not wrapped."""
    return f"{what}\n\n\b\nExample:\n  mongo-session-service {example}"


def selection(options: dict[str, Any]) -> Selection:
    """What the options select, which are taken out."""
    from mongo_session_service.transfer import Selection

    apps, users = frozenset(options.pop("apps")), frozenset(options.pop("users"))
    return Selection(apps, users, options.pop("since"))


def with_password(url: str, password: str | None) -> str:
    """A URL with a password for the user in it."""
    if password is None:
        return url
    parts = re.fullmatch(r"([\w+.-]+://)([^/@:]+)(?::[^/@]*)?@(.*)", url, re.DOTALL)
    if parts is None:
        raise click.UsageError(
            "A password needs a user in the URL: scheme://user@host."
        )
    return f"{parts[1]}{parts[2]}:{quote(password, safe='')}@{parts[3]}"


def run(work: Coroutine[Any, Any, int], *, is_debug: bool, how_to_go_on: str) -> None:
    """Run a command's work, and exit as it ends."""
    try:
        code = asyncio.run(work)
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"\nInterrupted. {how_to_go_on}", err=True)
        code = INTERRUPTED
    except MongoSessionServiceError as error:
        if is_debug:
            raise
        click.echo(f"Error: {in_one_line(error)}", err=True)
        code = FAILED
    except click.ClickException:
        raise
    except BrokenPipeError:
        # Whoever read the output has enough of it; nor can it be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = NOBODY_READS
    except Exception as error:
        if is_debug:
            raise
        kind = type(error).__name__
        message = f"Error: an unexpected {kind}. {how_to_go_on} --debug shows more."
        click.echo(message, err=True)
        code = FAILED
    sys.exit(code)


def pace(done: int, total: int | None, share: float | None, elapsed: float) -> str:
    """How many events are done, how fast and, if a share of all, how long yet."""
    so_far = counted(done, "event") if total is None else f"{done:,}/{total:,} events"
    shown = f"{so_far}, {done / max(elapsed, 1e-6):,.0f} events/s"
    if share:
        shown += f", {duration(elapsed * (1 - share) / share)} left"
    return shown


@contextmanager
def progress(
    label: str,
    totals: Totals | None,
    share_read: Callable[[], float | None] = lambda: None,
) -> Iterator[Callable[[int], None]]:
    """A bar with rate and remaining time, told how many events are done by now.

    Without totals the share of a file that was read tells the remaining time; without
    either, what is done is counted.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    started = time.monotonic()
    total = totals.events if totals else None
    done = 0

    def share() -> float | None:
        return share_read() if total is None else done / max(total, 1)

    def shown(_: object) -> str:
        return pace(done, total, share(), time.monotonic() - started)

    is_known = share() is not None
    with click.progressbar(
        None if is_known else iter(int, 1),
        length=_STEPS if is_known else None,
        label=label,
        file=sys.stderr,
        show_eta=False,
        item_show_func=shown,
    ) as bar:

        def advance(now: int) -> None:
            nonlocal done
            done = now
            part = share()
            bar.update((now if part is None else int(part * _STEPS)) - bar.pos)

        yield advance
