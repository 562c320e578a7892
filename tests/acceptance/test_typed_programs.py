"""The examples, and every block of Python in the docs, pass strict type checkers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import npm
from support.doc_blocks import blocks_of, fragment_program

ROOT = Path(__file__).parents[2]
ELSEWHERE = (
    '# mypy: disable-error-code="import-not-found, name-defined, untyped-decorator"\n'
    "# pyright: reportMissingImports=false, reportUndefinedVariable=false\n"
)
"""An Example may name what its page does not show."""
ROOTS = ["examples", "examples/support_desk", "docs/guide/encryption"]
"""The folders whose programs import each other."""

pytestmark = pytest.mark.release


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples, and with a folder for the blocks of each page."""
    folder = tmp_path_factory.mktemp("programs")
    shutil.copytree(ROOT / "examples", folder / "examples")
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        if page.stem == "tutorial":
            continue  # its programs are those in examples/support_desk
        name = str(page.relative_to(ROOT).with_suffix(""))
        for block in blocks_of(page):
            file = block.title if block.is_file else f"line_{block.line}.py"
            if block.language != "python":
                continue
            text = block.text
            if block.title in {"Example", "Fragment"}:
                text = fragment_program(text)
            if block.title == "Example":
                text = ELSEWHERE + text
            path = folder / name.replace("-", "_") / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return folder


def test_mypy_is_content(programs: Path) -> None:
    """Strictly, without a word of configuration."""
    command = [sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases"]

    done = subprocess.run(
        [*command, "--config-file=", "."],
        cwd=programs,
        env={"MYPYPATH": ":".join([".", *ROOTS])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_is_content(programs: Path) -> None:
    """As it is in editors, where it has to find the examples' own modules only."""
    roots = {
        "executionEnvironments": [
            {"root": folder} for folder in sorted([*ROOTS, "."], key=len, reverse=True)
        ]
    }
    (programs / "pyrightconfig.json").write_text(json.dumps(roots))
    pyright = npm.install(programs, "pyright@1") / ".bin/pyright"

    done = subprocess.run(
        [pyright, "--pythonpath", sys.executable],
        cwd=programs,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
