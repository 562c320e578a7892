"""Command-line application: the group of commands, their errors and exit codes.

Commands import ADK and the driver only when they run, so that ``--help`` answers soon.
"""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from typing_extensions import override

from mongo_session_service import errors
from mongo_session_service._version import __version__
from mongo_session_service.cli.completion import PROGRAMS, completion
from mongo_session_service.cli.consumers import consumers
from mongo_session_service.cli.doctor import doctor
from mongo_session_service.cli.erase import erase
from mongo_session_service.cli.fork import fork
from mongo_session_service.cli.grants import grants
from mongo_session_service.cli.kept import said
from mongo_session_service.cli.live import live
from mongo_session_service.cli.mongod import mongod
from mongo_session_service.cli.options import place_options
from mongo_session_service.cli.prune import prune
from mongo_session_service.cli.sessions import sessions
from mongo_session_service.cli.set import set_session
from mongo_session_service.cli.setup import setup
from mongo_session_service.cli.shard import shard
from mongo_session_service.cli.show import show
from mongo_session_service.cli.terminal import SEE_WHERE, printable
from mongo_session_service.cli.transfer import COMMANDS
from mongo_session_service.cli.trim import trim
from mongo_session_service.cli.watch import watch

_Command = TypeVar("_Command", bound=click.Command)

_INCOMPLETE: Final = 3
_INTERRUPTED: Final = 130
_BROKEN_PIPE: Final = 141
_EXIT_CODES: Final = f"""\b
Exit codes:
  0    success
  1    failure; one line on stderr says why and what to do
  2    invalid arguments
  {_INCOMPLETE}    finished, but something was skipped, differs or failed a check
  {_INTERRUPTED}  interrupted
  {_BROKEN_PIPE}  the output was closed early, for example by "| head"
"""

_HEADINGS: Final = {
    "Look at sessions": ("sessions", "show", "watch", "live"),
    "Change sessions": ("set", "fork", "trim", "prune", "erase"),
    "Move sessions": ("import", "verify", "export"),
    "Run MongoDB": ("setup", "migrate", "grants", "doctor", "shard", "mongod"),
    "Other commands": ("consumers", "completion"),
}
"""The commands as the help lists them."""

_UNWRITABLE: Final = {errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC}
_NOISE: Final = r" \(configured timeouts: [^)]*\)|, Timeout: [\d.]+s"
"""In the driver's message about a server that it cannot find."""


class _Application(click.Group):
    """A group of commands that fail in one line; Ctrl-C ends them silently.

    A command that finished but left something out, or found something wrong, returns
    False.
    """

    @override
    def main(self, *args: Any, **kwargs: Any) -> Any:
        _open_streams()
        called = kwargs.get("prog_name") or Path(sys.argv[0]).name
        program = _renamed(self, called) if called in PROGRAMS else self
        try:
            return super(_Application, program).main(*args, **kwargs)
        except OSError as error:  # help or an error message was not written
            with suppress(OSError):
                click.echo(f"Error: {_in_one_line(error)}", err=True)
            sys.exit(1)
        finally:
            _drop_unwritten()

    @override
    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        width = max(map(len, self.commands))
        for heading, names in _HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (name.ljust(width), self.commands[name].get_short_help_str(80))
                        for name in names
                    ]
                )

    @override
    def invoke(self, ctx: click.Context) -> Any:
        try:
            is_complete = super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):
            ctx.exit(_INTERRUPTED)
        except BrokenPipeError:
            ctx.exit(_BROKEN_PIPE)
        except click.exceptions.Exit:
            raise
        except click.ClickException as error:
            if said(ctx, "debug") and error.__cause__ is not None:
                traceback.print_exception(error.__cause__)
            raise _without_password(error) from None
        except Exception as error:  # noqa: BLE001  a command's last resort
            if said(ctx, "debug"):
                traceback.print_exc()
            raise click.ClickException(_in_one_line(error)) from None
        if is_complete is False:
            ctx.exit(_INCOMPLETE)


def _renamed(command: _Command, program: str) -> _Command:
    """The same command, whose help names the program as it was called."""
    renamed = copy(command)
    renamed.help = (command.help or "").replace(PROGRAMS[0], program)
    if isinstance(command, click.Group) and isinstance(renamed, click.Group):
        subcommands = command.commands.items()
        renamed.commands = {name: _renamed(each, program) for name, each in subcommands}
    return renamed


def _open_streams() -> None:
    """Open what the shell closed, before a socket takes its place.

    Reading then finds nothing, and writing output fails; error messages are lost.
    """
    for number, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, flags), number)
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    for stream in (sys.stdout, sys.stderr):
        # Characters that the locale cannot encode are escaped.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _drop_unwritten() -> None:
    """Forget what could not be written; Python would fail to flush it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _without_password(error: click.ClickException) -> click.ClickException:
    """The same error; a URI in a wrong place is quoted as an argument."""
    text = re.sub(r"://\S*@", "://...@", error.format_message())
    if text.startswith("Usage:"):
        return error  # a group's help, shown in the place of a missing command
    if isinstance(error, click.UsageError):
        return click.UsageError(text, error.ctx)
    return click.ClickException(text)


def _in_one_line(error: Exception) -> str:
    """What went wrong, and what to do about it."""
    text = printable(str(error))
    if isinstance(error, errors.SlowSubscriberError):
        again = "Start again"
        if error.last_revision is not None:
            again += f" with --after-revision {error.last_revision}"
        return f"The changes came faster than they could be written. {again}."
    if isinstance(error, errors.SourceError) and error.__cause__ is not None:
        return f"{text} {SEE_WHERE}"
    if isinstance(error, errors.MongoSessionServiceError):
        return re.sub(_NOISE, "", printable(error.message))
    if isinstance(error, ImportError):
        return text
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return f"The output cannot be written: {error.strerror}."
    # Its text may hold a password or stored data.
    return f"Unexpected {type(error).__name__}: {SEE_WHERE}"


@click.group(
    cls=_Application,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "-V", "--version", message="%(prog)s %(version)s")
@place_options
def main() -> None:
    """Inspects and manages ADK sessions stored in MongoDB.

    \b
    Example:
      export MONGODB_URI='mongodb://127.0.0.1:27017/adk?replicaSet=rs0'
      mongo-session-service sessions
      mongo-session-service watch
    """  # noqa: D301  \b is click's sign


for command in (
    *(sessions, show, watch, live),
    *(fork, set_session, erase, prune, trim),
    *(consumers, setup, shard, doctor, grants, mongod, completion),
    *COMMANDS,
):
    main.add_command(command)
