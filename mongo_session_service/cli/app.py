"""Command-line application: the group of commands, their errors and exit codes.

Commands import ADK and the driver only when they run, so that ``--help`` answers soon.
"""

from __future__ import annotations

import errno
import signal
import sys
import traceback
from io import TextIOWrapper
from itertools import chain
from typing import Any, Final

import click
from typing_extensions import override

from mongo_session_service import errors
from mongo_session_service._version import __version__
from mongo_session_service.cli.change_commands import (
    erase,
    prune,
    redact,
    set_session,
    trim,
)
from mongo_session_service.cli.consumer_commands import consumers
from mongo_session_service.cli.follow_commands import live, watch
from mongo_session_service.cli.inspect_commands import sessions, show, storage
from mongo_session_service.cli.server_commands import (
    doctor,
    grants,
    mongod,
    setup,
)
from mongo_session_service.cli.terminal import (
    DEBUG_HINT,
    SharedOptions,
    printable,
    shared_options,
)
from mongo_session_service.cli.transfer_commands import export_, import_, verify_

_INCOMPLETE: Final = 3
_INTERRUPTED: Final = 130
_EXIT_CODES: Final = f"""\b
Exit codes:
  0    success
  1    failure, named in a line on stderr unless "| head" reads no more
  2    invalid arguments
  {_INCOMPLETE}    finished, but something was skipped, differs or failed a check
  {_INTERRUPTED}  interrupted
"""

_COMMANDS: Final[dict[str, tuple[click.Command, ...]]] = {
    "Look at sessions": (sessions, show, storage, watch, live),
    "Change sessions": (set_session, redact, trim, prune, erase),
    "Move sessions": (import_, verify_, export_),
    "Run MongoDB": (setup, grants, doctor, mongod),
    "Run consumers": (consumers,),
}
"""The commands, by the headings of the help."""

_UNWRITABLE: Final = {errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC}


class _Application(click.Group):
    """A group of commands that fail in one line.

    Ctrl-C, SIGTERM and SIGHUP end them silently. A command that finished but left
    something out, or found something wrong, returns False: the exit code is then 3.
    """

    @override
    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        width = max(map(len, self.commands))
        for heading, commands in _COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (str(each.name).ljust(width), each.get_short_help_str(80))
                        for each in commands
                    ]
                )

    @override
    def __call__(self, *args: Any, **options: Any) -> Any:
        # As Ctrl-C does, the end of a terminal or service leaves nothing half done.
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                signal.signal(number, _end_as_by_ctrl_c)
        return super().__call__(*args, **options)

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            is_complete = super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            ctx.exit(_INTERRUPTED)
        except (click.exceptions.Exit, BrokenPipeError):
            raise
        except click.ClickException as error:
            if shared_options().debug and error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            error.message = errors.without_passwords(error.message)  # type: ignore[misc]
            raise error from None
        except Exception as error:  # noqa: BLE001  a command's last resort
            if shared_options().debug:
                traceback.print_exc()
            raise click.ClickException(_in_one_line(error)) from None
        if is_complete is False:
            ctx.exit(_INCOMPLETE)


def _end_as_by_ctrl_c(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a script: `command &`
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _in_one_line(error: Exception) -> str:
    """Describe what went wrong, and what to do about it."""
    text = printable(str(error))
    if isinstance(error, errors.SlowSubscriberError):
        again = "Start again"
        if error.last_revision is not None:
            again += f" with --after-revision {error.last_revision}"
        return f"The changes came faster than they could be written. {again}."
    if isinstance(error, errors.SourceError) and error.__cause__ is not None:
        return f"{text} {DEBUG_HINT}"
    if isinstance(error, errors.MongoSessionServiceError):
        return printable(error.message)
    if isinstance(error, ImportError):
        return text
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return f"The output cannot be written: {error.strerror}."
    # Its text may hold a password or stored data.
    return f"Unexpected {type(error).__name__}: {DEBUG_HINT}"


@click.group(
    cls=_Application,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """Inspects and manages ADK sessions stored in MongoDB.

    \b
    Example:
      export MONGODB_URI='mongodb://127.0.0.1:27017/adk?replicaSet=rs0'
      mongo-session-service sessions
      mongo-session-service watch
    """
    context.obj = SharedOptions()
    if isinstance(sys.stdout, TextIOWrapper):
        # A locale may not have every character.
        sys.stdout.reconfigure(errors="backslashreplace")


for command in chain.from_iterable(_COMMANDS.values()):
    main.add_command(command)
