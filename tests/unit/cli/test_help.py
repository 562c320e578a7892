"""What ``--help`` costs: a tenth of a second, because little is imported for it."""

from __future__ import annotations

import re
import subprocess
import sys

import click
from click.testing import CliRunner

from mongo_session_service.cli import main

ASK_ALL = """
import sys
from mongo_session_service.cli import main

def ask(command, words):
    main([*words, "--help"], standalone_mode=False)
    for name, each in getattr(command, "commands", {}).items():
        ask(each, [*words, name])

ask(main, [])
print(*sys.modules, file=sys.stderr)
"""

COSTLY = {
    *("asyncio", "ssl", "multiprocessing"),
    *("google", "pydantic", "opentelemetry", "sqlalchemy"),
    *("pymongo", "bson", "motor"),
    *("rich", "starlette", "uvicorn"),
}


def test_help_imports_little() -> None:
    """No command's help waits for ADK, the driver, a web server or an event loop."""
    command = [sys.executable, "-c", ASK_ALL]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.count("Usage: ") > 10
    imported = set(done.stderr.split())
    assert "mongo_session_service.cli.app" in imported
    assert imported & COSTLY == set()


def widest(command: click.Command, words: tuple[str, ...] = ()) -> str:
    """The longest line of the help of a command and its subcommands."""
    done = CliRunner().invoke(main, [*words, "--help"], terminal_width=80)
    own = done.stdout.splitlines()
    below = [
        widest(each, (*words, name))
        for name, each in getattr(command, "commands", {}).items()
    ]
    return max(*own, *below, key=len)


def test_help_fits_into_80_columns() -> None:
    """Of every command, with its examples."""
    assert len(longest := widest(main)) <= 80, longest


def test_help_lists_each_command_once_in_a_sentence() -> None:
    """Every command is under a heading, with a sentence that is not cut off."""
    done = CliRunner().invoke(main, ["--help"], terminal_width=100)

    listed = re.findall(r"^  ([a-z]+) +([A-Z][a-z]+s .*\.)$", done.output, re.MULTILINE)
    assert sorted(name for name, _ in listed) == sorted(main.commands)
