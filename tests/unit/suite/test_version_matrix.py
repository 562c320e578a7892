"""The table of what the tests were run on."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).parents[3] / "scripts"


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script's functions, with a page of their own."""
    path = SCRIPTS / "version_matrix.py"
    spec = importlib.util.spec_from_file_location("version_matrix", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    page = tmp_path / "compatibility.md"
    shown = f"{module.BEGIN}{module.table({})}{module.END}"
    page.write_text(f"# Page\n\n{shown}\n\nAfter.\n")
    monkeypatch.setattr(module, "PAGE", page)
    return module


def test_a_run_replaces_that_of_the_same_versions(matrix: ModuleType) -> None:
    """Other runs stay, in the order of their versions, and so does the text around."""
    lowest = ["3.11.7", "2.9.0", "4.17.0", "3.7.1", "0.0.36"]
    newest = ["3.11.7", "2.13.0", "4.20.0", "3.7.1", "0.0.36"]
    matrix.write([[*newest, "6.0.5", "7 passed"], [*lowest, "5.0.32", "**failed**"]])

    matrix.write([[*lowest, "5.0.32", "2 passed"]])

    shown = matrix.PAGE.read_text()
    assert shown.startswith("# Page\n\n")
    assert shown.endswith("\n\nAfter.\n")
    header, _, *rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert header.endswith(
        "| MongoDB 5.0.32 | MongoDB 6.0.5 | MongoDB 7.0 | MongoDB 8.0 |"
    )
    assert rows == [
        f"| {' | '.join(lowest)} | 2 passed | not run | not run | not run |",
        f"| {' | '.join(newest)} | not run | 7 passed | not run | not run |",
    ]


def test_a_server_that_was_run_is_not_shown_as_missing(matrix: ModuleType) -> None:
    """Its own version takes the column's place."""
    versions = ["3.11.7", "2.9.0", "4.17.0", "3.7.1", "0.0.36", "7.0.12"]

    matrix.write([[*versions, "7 passed"]])

    assert "| MongoDB 7.0.12 | MongoDB 8.0 |\n" in matrix.PAGE.read_text()


@pytest.mark.parametrize(
    ("code", "printed", "verdict"),
    [
        (0, "1215 passed, 4 xfailed in 9.1s", "1,215 passed"),
        (1, "3 failed, 7 passed in 9.1s", "**3 of 10 failed**"),
        (1, "7 passed, 1 error in 9.1s", "**failed**"),
        (4, "", "**failed**"),
        (0, "no tests ran in 0.1s", "**failed**"),
    ],
)
def test_only_a_run_that_passed_is_shown_so(
    matrix: ModuleType, code: int, printed: str, verdict: str
) -> None:
    """A run without tests, with errors, or that did not begin has failed."""
    done = subprocess.CompletedProcess((), code, f".....\n{printed}\n")

    assert matrix.verdict(done) == verdict
