"""Options that commands share: the same words, wherever they stand."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner
from support.cli_runner import call

from mongo_session_service import __version__
from mongo_session_service.cli import main
from mongo_session_service.cli.options import details, verbosity_options
from mongo_session_service.cli.terminal import print_remark, shared_options, warn
from mongo_session_service.model.metadata import Details


def commands(
    command: click.Command = main, path: str = ""
) -> Iterator[tuple[str, Any]]:
    """Every command of the program, by the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            yield from commands(each, f"{path} {name}".lstrip())


COMMANDS = dict(commands())
LEAVES = [path for path, each in COMMANDS.items() if not isinstance(each, click.Group)]
LIBRARY = logging.getLogger("mongo_session_service")


def spellings(command: click.Command) -> dict[str, str | None]:
    """A command's options, in all spellings, with what the help says of them."""
    options = [each for each in command.params if isinstance(each, click.Option)]
    return {name: option.help for option in options for name in option.opts}


def test_an_option_is_explained_in_the_same_words_everywhere() -> None:
    """Who knows an option of one command knows it in all others.

    Where its value is called something else, it is another option.
    """
    words: dict[tuple[str, str | None], set[str]] = defaultdict(set)
    for command in COMMANDS.values():
        for option in (
            each for each in command.params if each.param_type_name == "option"
        ):
            assert isinstance(option, click.Option)
            text = (option.help or "").removesuffix("; repeatable.").rstrip(".")
            for name in option.opts:
                words[name, option.metavar].add(text)

    assert {name: texts for name, texts in words.items() if len(texts) > 1} == {}


@pytest.mark.parametrize("path", LEAVES)
def test_each_command_has_the_options_of_all(path: str) -> None:
    """Every command has -v, -q and --debug."""
    known = spellings(COMMANDS[path]).keys()

    assert {"-v", "--verbose", "-q", "--quiet", "--debug"} - known == set()


def test_the_version_is_printed() -> None:
    """With -V and --version alike."""
    told = [call(each).stdout for each in ("-V", "--version")]

    assert [each.split()[-1] for each in told] == [__version__] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("set a b c --ttl 0s", "'--ttl': '0s' is out of range: more than 0"),
        ("set a b c --ttl 36526d", "'--ttl': '36526d' is out of range: more than 0"),
        ("prune --idle-for 0.0h", "'--idle-for': '0.0h' is out of range: more than 0"),
        ("trim a --older-than 90", "'90' is not a duration such as 7200s, 12h or 7d."),
        ("trim a --older-than 3m", "12h or 7d. m may be minutes or months."),
        ("trim a --older-than 36526d", "more than 0, at most 36525d (100 years)."),
        ("prune --created-before 2999-01-01", "'2999-01-01' is not in the past"),
        ("prune --created-before 1969-12-31", "'1969-12-31' is not in the past"),
        ("set a b c --expire-time 2020-01-01", "'2020-01-01' is not in the future"),
    ],
)
def test_a_time_out_of_range_is_refused(arguments: str, message: str) -> None:
    """The option and its range are named, and nothing is connected to."""
    done = call(*arguments.split(), "--uri", "mongodb://127.0.0.1:1")

    assert done.returncode == 2
    assert message in done.stderr


@click.command()
@verbosity_options
def command() -> None:
    """Says something of each kind."""
    click.echo("result")
    print_remark("remark")
    warn("problem")
    logging.getLogger("mongo_session_service.somewhere").debug("de\ntail")
    click.echo(f"details: {shared_options().verbose}")


@pytest.mark.parametrize(
    ("arguments", "output", "errors"),
    [
        ([], "result\ndetails: False\n", "remark\nproblem\n"),
        (["-q"], "result\ndetails: False\n", "problem\n"),
        (["--quiet"], "result\ndetails: False\n", "problem\n"),
        (["-v"], "result\ndetails: True\n", "remark\nproblem\nde tail\n"),
    ],
)
def test_verbosity(arguments: list[str], output: str, errors: str) -> None:
    """Quiet leaves results and problems; verbose adds details and the log."""
    before = list(LIBRARY.handlers)

    done = CliRunner().invoke(command, arguments)

    assert done.stdout == output
    assert done.stderr == errors
    assert LIBRARY.handlers == before


@pytest.mark.parametrize("group", ["import", "verify"])
def test_a_source_without_its_kind_is_refused_with_the_kinds(group: str) -> None:
    """Who names a file alone reads which kinds there are, and an example."""
    done = call(group, "old.db", "mongodb://h/adk")

    assert done.returncode == 2
    assert (
        "'old.db' is no kind of source (sql, sqlite, adk-mongodb, jsonl, service)"
        in done.stderr
    )
    assert f" {group} sqlite old.db`." in done.stderr


def test_each_detail_can_be_set() -> None:
    """What people note of a session is an option of ``set``, by the same name."""
    taken = {str(each.name) for each in COMMANDS["set"].params}

    assert tuple(details) == tuple(Details.model_fields)
    assert Details.model_fields.keys() <= taken
