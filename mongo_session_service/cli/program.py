"""How commands fail: in one line, with exit codes that mean something."""

from __future__ import annotations

import os
import re
import sys
import traceback
from typing import Any, Final

import click
from typing_extensions import override

from mongo_session_service.cli.connection import is_debugging
from mongo_session_service.cli.terminal import printable
from mongo_session_service.errors import (
    MongoSessionServiceError,
    SlowSubscriberError,
)

INTERRUPTED: Final = 130
NOBODY_READS: Final = 141

_NOISE: Final = r" \(configured timeouts: [^)]*\)|, Timeout: [\d.]+s"
"""In what the driver says of a server that it cannot find."""


class Program(click.Group):
    """A group of commands that fail in one line; Ctrl-C ends them silently."""

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # Or else Python fails to flush it at the very end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(NOBODY_READS)
        except click.exceptions.Exit:
            raise
        except click.ClickException as error:
            raise _without_password(error) from None
        except Exception as error:  # noqa: BLE001  a command's last resort
            if is_debugging(ctx):
                traceback.print_exc()
            raise click.ClickException(in_one_line(error)) from None


def _without_password(error: click.ClickException) -> click.ClickException:
    """The same; a URI that is given in a wrong place is quoted as an argument."""
    text = re.sub(r"://\S*@", "://...@", error.format_message())
    if text.startswith("Usage:"):
        return error  # a group's help, shown in the place of a missing command
    if isinstance(error, click.UsageError):
        return click.UsageError(text, error.ctx)
    return click.ClickException(text)


def in_one_line(error: Exception) -> str:
    """What went wrong, and what to do about it."""
    text = printable(str(error))
    if isinstance(error, SlowSubscriberError):
        again = "Start again"
        if error.last_revision is not None:
            again += f" with --after-revision {error.last_revision}"
        return f"The changes came faster than they could be written. {again}."
    if isinstance(error, MongoSessionServiceError):
        return re.sub(_NOISE, "", printable(error.message))
    if isinstance(error, ImportError):
        return text
    from google.adk.errors.session_not_found_error import SessionNotFoundError

    if isinstance(error, SessionNotFoundError):
        return f"{text} Check --app, --user, --session and --database."
    # Its text may be anything, so also a password or what is stored.
    return f"Unexpected {type(error).__name__}: --debug shows where it comes from."
