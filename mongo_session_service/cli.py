"""The command line: ``mongo-session-service``."""

from __future__ import annotations

import click

from .transfer.commands import COMMANDS
from .version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Look after ADK sessions in MongoDB."""


for _command in COMMANDS:
    main.add_command(_command)
