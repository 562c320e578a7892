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
    page.write_text(f"# Page\n\n{module.BEGIN}| a |\n| - |\n{module.END}\n\nAfter.\n")
    monkeypatch.setattr(module, "PAGE", page)
    return module


def test_a_row_replaces_that_of_the_same_versions(matrix: ModuleType) -> None:
    """Other rows stay, in the order of their versions, and so does the text around."""
    old = ["3.11.7", "2.9.0", "4.17.0", "5.0.32", "**1 of 2 failed**"]
    other = ["3.11.7", "2.13.0", "4.17.0", "5.0.32", "7 passed"]
    matrix.write([old, other])

    matrix.write([[*old[:-1], "2 passed"]])

    shown = matrix.PAGE.read_text()
    assert shown.startswith("# Page\n\n")
    assert shown.endswith("\n\nAfter.\n")
    assert shown.count("\n| 3.11.7 | 2.9.0 | 4.17.0 | 5.0.32 | 2 passed |\n") == 1
    assert shown.count("| 3.11.7 | ") == 2
    assert shown.index("2.9.0") < shown.index("2.13.0")
    assert "failed" not in shown


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
