"""The tests on each Python, with the lowest and with the newest packages.

``scripts/compatibility --help`` tells how to run them.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

import nox

ROOT = Path(__file__).parents[1]
PACKAGES = ("google-adk", "pymongo", "motor", "mongomock-motor")
LOWEST_TESTS = (
    *("tests/contract", "tests/unit", "tests/integration"),
    # They need newer packages than this one.
    "--ignore=tests/unit/suite",
    "--deselect=tests/unit/package/test_packaging.py::test_files_for_other_tools_follow_their_schemas",
)

nox.needs_version = ">=2025.2.9"
nox.options.envdir = str(ROOT / ".compatibility")
nox.options.reuse_existing_virtualenvs = True


def lowest() -> list[str]:
    """The lowest versions that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted: list[str] = project["dependencies"]
    found = (re.match(r"([\w-]+)>=([\d.]+)", each) for each in wanted)
    return [f"{each[1]}=={each[2]}" for each in filter(None, found)]


@nox.session(python=["3.11", "3.12", "3.13", "3.14"])
@nox.parametrize("packages", ["lowest", "newest"])
def compatibility(session: nox.Session, packages: str) -> None:
    """Run the tests in an environment with these packages."""
    session.chdir(ROOT)
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text("\n".join(lowest() if packages == "lowest" else ()))
    session.install("pip>=25.1")  # the first with dependency groups
    project = ("--editable", ".[motor,sse,embedded]", "--group", "dev")
    session.install("-c", str(constraints), "--upgrade", *project)
    versions = "print(*(f'{p} {version(p)}' for p in sys.argv[1:]), sep=', ')"
    code = f"import sys; from importlib.metadata import version; {versions}"
    session.run("python", "-c", code, *PACKAGES)
    at_once = () if os.environ.get("MONGODB_URI") else ("-n2",)
    tests = session.posargs or (LOWEST_TESTS if packages == "lowest" else ())
    session.run("python", "-m", "pytest", "-q", *at_once, *tests)
