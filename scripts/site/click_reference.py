"""Markdown extension: a line ``::: commands`` becomes the command line's reference."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Iterator

import click
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

from mongo_session_service.cli.app import main

_MARK = "::: commands"
_PROGRAM = "mongo-session-service"
_EVERYWHERE = 0.75
"""An option that more commands than this share have is explained once, at the top."""

_PIPE = "&#124;"
"""A ``|`` that ends no cell of a table."""

_EXAMPLE = re.compile(r"^Example:\n((?: .*\n?|\n)+)", re.MULTILINE)


class _Reference(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        written: list[str] = []
        for line in lines:
            written += list(_reference()) if line.strip() == _MARK else [line]
        return written


class ClickReference(Extension):
    """Writes what ``--help`` knows of each command."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  Markdown's own name
        """Before code blocks are found: examples become some."""
        md.preprocessors.register(_Reference(md), "click_reference", 150)


def makeExtension(**_: object) -> ClickReference:  # noqa: N802  Markdown's own name
    """Make the extension; Markdown calls this function of a module."""
    return ClickReference()


def _reference() -> Iterator[str]:
    commands = dict(_commands(main, _PROGRAM))
    leaves = [each for each in commands.values() if not isinstance(each, click.Group)]
    counted = Counter(row for each in leaves for row in _rows(each))
    shared = {row for row, n in counted.items() if n > len(leaves) * _EVERYWHERE}
    yield from ["## Options of every command", ""]
    yield "Most commands take these, after the command's name:"
    yield from ["", *_table([row for row in counted if row in shared]), ""]
    yield from _exit_codes()
    for path, command in commands.items():
        yield from _section(path, command, shared)


def _exit_codes() -> Iterator[str]:
    """The end of ``--help``: a heading, then a code and its meaning in each line."""
    lines = inspect.cleandoc(main.epilog or "").replace("\b\n", "").splitlines()
    heading, *codes = lines
    yield from [f"## {heading.removesuffix(':')}", "", "| code | |", "|---|---|"]
    for line in codes:
        code, meaning = line.split(maxsplit=1)
        yield f"| `{code}` | {meaning.replace('|', _PIPE)} |"
    yield ""


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if path != _PROGRAM:
        yield path, command
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from _commands(each, f"{path} {name}")


def _section(
    path: str, command: click.Command, shared: set[tuple[str, str]]
) -> Iterator[str]:
    level = "##" if path.count(" ") == 1 else "###"
    yield from [f"{level} `{path.removeprefix(_PROGRAM + ' ')}`", ""]
    text = inspect.cleandoc(command.help or "").replace("\b\n", "") + "\n"
    examples = [block[1] for block in _EXAMPLE.finditer(text)]
    yield from [_EXAMPLE.sub("", text).replace("*", r"\*"), ""]
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield from ["```text", f"Usage: {usage}", "```", ""]
    for example in examples:
        lines = inspect.cleandoc(example).splitlines()
        yield from ["```console", *(f"$ {line}" for line in lines), "```", ""]
    yield from _table([row for row in _rows(command) if row not in shared])
    yield ""


def _rows(command: click.Command) -> list[tuple[str, str]]:
    context = click.Context(command)
    options = [
        each for each in command.get_params(context) if isinstance(each, click.Option)
    ]
    records = [each.get_help_record(context) for each in options]
    return [row for row in records if row]


def _table(rows: list[tuple[str, str]]) -> list[str]:
    if not rows:
        return []
    cells = [
        f"| `{names.replace('|', chr(92) + '|')}` | {help_.replace('|', _PIPE)} |"
        for names, help_ in rows
    ]
    return ["| option | |", "|---|---|", *cells]
