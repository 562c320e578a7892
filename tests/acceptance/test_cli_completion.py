"""Completion in shells: in a real bash, and what the others are given."""

from __future__ import annotations

import os
import subprocess

import pytest
from support.cli_runner import PROGRAM, run

ASKING = """
compopt() { COMPREPLY=("$@"); }  # bash completes files itself
eval "$script"
complete -p "$1" >/dev/null || exit 1
read -ra COMP_WORDS <<< "$2"
COMP_WORDS=("$1" "${COMP_WORDS[@]}" "$3")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
read -ra registered <<< "$(complete -p "$1")"
for each in "${!registered[@]}"; do
    if [[ ${registered[each]} == -F ]]; then ${registered[each + 1]} "$1"; fi
done
echo "${COMPREPLY[*]}"
"""
"""What bash does on a tab: with the program, the words before it, and the word."""


def completion(shell: str) -> str:
    return run(_MONGO_SESSION_SERVICE_COMPLETE=f"{shell}_source").stdout


@pytest.mark.parametrize(
    ("before", "word", "completed"),
    [
        ("", "se", {"sessions", "set", "setup"}),
        ("sessions --order", "u", {"update_time"}),
        ("import jsonl", "old", {"-o", "default"}),
        ("export --to", "ne", {"-o", "default"}),
    ],
)
def test_bash_completes(before: str, word: str, completed: set[str]) -> None:
    """Commands, subcommands, values and files are completed."""
    script = completion("bash")
    path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["/usr/bin/env", "bash", "-c", ASKING, "bash", PROGRAM.name, before, word],
        env=os.environ | {"PATH": path, "script": script},
        capture_output=True,
        text=True,
        check=True,
    )

    assert set(done.stdout.split()) == completed
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("shell", "registers"), [("zsh", "compdef"), ("fish", "complete --no-files")]
)
def test_other_shells_get_their_script(shell: str, registers: str) -> None:
    """It registers the program."""
    script = completion(shell)

    assert any(
        registers in line and PROGRAM.name in line for line in script.splitlines()
    )
