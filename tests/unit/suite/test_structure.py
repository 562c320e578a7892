"""What every test of the suite has in common."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from support.fast_core import CORE
from support.fast_core import TESTS as FOLDER

PACKAGE = Path(__file__).parents[3] / "mongo_session_service"
TESTS = sorted(Path(__file__).parents[2].rglob("test_*.py"))


def test_every_test_has_a_docstring_of_one_sentence() -> None:
    """Each test has a docstring of one sentence."""
    for path in TESTS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef
            ) and node.name.startswith("test_"):
                promise = ast.get_docstring(node) or ""
                assert re.fullmatch(r"[\w`$].*\.", promise, re.DOTALL), (
                    f"{path.name}: {node.name}"
                )


def test_no_test_sleeps_skips_or_expects_to_fail_quietly() -> None:
    """Tests wait on signals, and a missing server fails them."""
    for path in TESTS:
        if path != Path(__file__):
            found = re.findall(r"time\.sleep|importorskip|mark\.skip", path.read_text())
            assert not found, path.name


def test_the_fast_core_is_there() -> None:
    """No module that ``scripts/test --fast`` is to run has another name today."""
    assert [each for each in CORE if not (FOLDER / each).exists()] == []


def test_each_module_leads_to_its_tests() -> None:
    """A test file has a module's name, or tests/README.md names what shows it."""
    files = {path.name for path in TESTS}
    modules = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.name != "__init__.py"
        and not {f"test_{path.stem}.py", f"test_{path.stem}s.py"} & files
    }

    text = (FOLDER / "README.md").read_text()
    assert {*re.findall(r"^\| `([\w/]+\.py)` \|", text, re.MULTILINE)} == modules


def test_names_in_the_package_are_of_one_thing() -> None:
    """No file, and no class, has the name of another one."""
    modules = [each for each in PACKAGE.rglob("*.py") if each.name != "__init__.py"]
    files = [path.name for path in modules]
    classes = [
        node.name
        for path in modules
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]

    assert [name for name, n in Counter(files).items() if n > 1] == []
    assert [name for name, n in Counter(classes).items() if n > 1] == []
