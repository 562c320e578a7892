"""What every test of the suite has in common."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from support.cancellation import calls
from support.daily_sample import in_turn
from support.fast_core import CORE
from support.fast_core import TESTS as FOLDER
from support.hostile_values import VALUES, methods, parameters

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


def test_every_method_is_cancelled() -> None:
    """A new one has a call in tests/support/cancellation, or it waits for nothing."""
    cases = (*calls.WRITES, *calls.READS, *calls.FOLLOWERS, *calls.CONSUMERS)
    tried = set().union(*(each.methods for each in cases))

    assert {*calls.methods()} == tried | calls.WAITS_FOR_NOTHING | calls.ENDS_ONLY_SO
    assert tried.isdisjoint(calls.WAITS_FOR_NOTHING)


def test_every_parameter_of_every_public_method_is_fuzzed() -> None:
    """A new parameter has hostile values, by its name, in support/hostile_values.py."""
    missing = {
        f"{name}({each.name}=)"
        for name, method in methods()
        for each in parameters(method)
        if each.name not in VALUES
    }

    assert missing == set()
    assert {name for name, _ in methods()} >= {
        "MongoSessionService.append_event",
        "MongoSessionService.watch",
        "Consumer.run",
    }


def test_each_day_has_others_and_each_case_its_day() -> None:
    """A day's choice is the same wherever it is made; in some weeks all were chosen."""
    cases = [f"test_of_a_product[{n}]" for n in range(4)]
    days = [f"2026-03-{day:02}" for day in range(1, 29)]
    chosen = [in_turn(day, cases)[0] for day in days]

    assert chosen == [in_turn(day, reversed(cases))[0] for day in days]
    assert {*chosen} == {*cases}
