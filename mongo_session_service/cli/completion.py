"""Command ``completion``: the script that lets a shell complete this program."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from mongo_session_service.cli import options

PROGRAMS = ("mongo-session-service", "adk-mongo")
"""The names that the program is installed under."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@options.verbosity_options
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints a script that completes commands in a shell.

    It serves both names of the program. Bash must be 4.4 or newer.

    \b
    Example:
      eval "$(mongo-session-service completion bash)"    # in ~/.bashrc
      eval "$(mongo-session-service completion zsh)"     # in ~/.zshrc
      mongo-session-service completion fish | source    # in config.fish
    """  # noqa: D301  \b is click's sign
    root = context.find_root().command
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"Click has no completion for {shell}.")
    for program in PROGRAMS:
        variable = f"_{program.replace('-', '_').upper()}_COMPLETE"
        click.echo(kind(root, {}, program, variable).source())
