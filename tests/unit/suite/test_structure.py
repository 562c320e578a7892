"""What every test of the suite has in common."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from support.fast_core import CORE
from support.fast_core import TESTS as FOLDER

TESTS = sorted(Path(__file__).parents[2].rglob("test_*.py"))


def test_every_test_says_what_it_promises() -> None:
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
