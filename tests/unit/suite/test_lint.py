"""What ``scripts/lint`` says to who changes the package for the first time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"
CHECKER = """\
#!/bin/sh
echo "ran $*"
case "$*" in *ruff*|*budget*) exit 1;; esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project that has nothing but the scripts, and checkers that print."""
    (tmp_path / "scripts").mkdir()
    for name in ("lint", "budget"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    for name in (".venv/bin/python", ".venv/bin/lint-imports", "scripts/setup"):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(CHECKER)
        program.chmod(0o755)
    return tmp_path


def test_all_checkers_run_before_it_fails(project: Path) -> None:
    """Whoever has two things to mend reads of both at once, and their names again."""
    done = subprocess.run(
        [project / "scripts" / "lint"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 1
    assert [line.split()[-1] for line in done.stdout.splitlines()] == [
        "dev",
        ".",
        ".",
        "mypy",
        "--no-cache",
        "scripts/stored-fields",
        "scripts/budget",
    ]
    assert [line.split()[-1] for line in done.stderr.splitlines()] == [
        ".",
        ".",
        "scripts/budget",
    ]


def test_a_room_over_its_budget_is_told_what_to_do(project: Path) -> None:
    """The advice names where the lines go, and who may raise the budget."""
    room = project / "mongo_session_service" / "cli"
    room.mkdir(parents=True)
    (room / "one.py").write_text("one = 1\ntwo = 2\n")
    (project / "pyproject.toml").write_text("[tool.budget]\ncli = 1\ntotal = 2\n")

    done = subprocess.run(
        [sys.executable, project / "scripts" / "budget"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "over budget" in done.stdout
    assert "[tool.budget] in pyproject.toml" in done.stderr.replace("\n", " ")
