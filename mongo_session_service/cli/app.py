"""``mongo-session-service``: what the service knows, on the command line.

What takes long to import is imported by the commands, so that ``--help`` answers soon.
"""

from __future__ import annotations

import sys
from typing import Final

import click

from mongo_session_service._version import __version__
from mongo_session_service.cli.connection import connection_options
from mongo_session_service.cli.consumers import consumers
from mongo_session_service.cli.doctor import doctor
from mongo_session_service.cli.grants import grants
from mongo_session_service.cli.live import live
from mongo_session_service.cli.mongod import mongod
from mongo_session_service.cli.program import Program
from mongo_session_service.cli.prune import prune
from mongo_session_service.cli.transfer import COMMANDS
from mongo_session_service.cli.watch import watch

_EXIT_CODES: Final = """\b
Exit codes:
  0    it did what it was asked to
  1    it failed; one line on stderr says why and what to do
  2    the arguments make no sense
  3    it came to its end, but something was left out, differs or is not well
  130  it was interrupted
  141  nobody reads its output any more, as after "| head"
"""


@click.group(
    cls=Program,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@connection_options
def main() -> None:
    """Looks after ADK sessions that are kept in MongoDB.

    \b
    Example:
      export MONGODB_URI='mongodb://127.0.0.1:27017/my_db?replicaSet=rs0'
      mongo-session-service watch
    """  # noqa: D301  \b is click's sign
    for stream in (sys.stdout, sys.stderr):
        # Whatever a locale cannot write is spelt out.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


for command in (watch, live, consumers, doctor, grants, mongod, prune, *COMMANDS):
    main.add_command(command)
