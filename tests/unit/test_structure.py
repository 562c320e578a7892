"""What keeps the code readable, held by tests rather than by discipline."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "mongo_session_service"

LAYERS = (
    (
        "version",
        "errors",
        "cancellation",
        "starting",
        "wording",
        "changes",
        "transfer.sources",
    ),
    (
        "arguments",
        "details",
        "events",
        "scopes",
        "telemetry",
        "turns",
        "values",
        "privileges",
    ),
    ("records", "tags"),
    (
        "concerns",
        "hooks",
        "queries",
        "refused",
        "sessions",
        "sizes",
        "spans",
        "summaries",
        "visibility",
    ),
    ("codec", "conditions"),
    ("documents",),
    ("past", "search"),
    ("page_tokens",),
    ("drivers",),
    ("snapshots", "transactions"),
    ("secondaries",),
    ("database", "translation"),
    ("greeting", "page_key", "explaining", "patience", "uris"),
    (
        "address",
        "schema",
        "store",
        "history",
        "amending",
        "deletions",
        "authorization",
    ),
    ("committer", "layout", "revisiting", "checkups"),
    ("copying", "rebasing"),
    ("clients",),
    ("lifecycle", "changes.change"),
    ("branching", "creating", "changes.happenings"),
    ("pages", "log_pages"),
    ("catalogue", "histories"),
    ("changes.items", "changes.losses"),
    ("changes.stats",),
    (
        "changes.router",
        "changes.stream",
        "changes.inbox",
        "changes.view",
        "changes.checkpoints",
        "changes.handling",
        "changes.roster",
        "changes.metrics",
        "changes.forgetting",
        "changes.endings",
    ),
    ("changes.expiry",),
    (
        "changes.subscriptions",
        "changes.deliveries",
        "changes.leases",
        "changes.dead_letters",
    ),
    ("changes.reader", "changes.tenure"),
    ("changes.attempts",),
    ("changes.feed", "changes.consumers"),
    ("changes.watching",),
    ("erasing",),
    ("upkeep",),
    ("service", "changes.live", "changes.refusals"),
    ("doctor",),
    ("changes.sse", "commands", "commands.output", "commands.connection"),
    ("commands.screen", "commands.program", "commands.watched"),
    ("commands.watch", "commands.live", "commands.consumers"),
    ("commands.doctor",),
    ("commands.grants", "commands.mongod", "commands.prune"),
    ("migrations",),
    ("transfer.items", "transfer.unpickling"),
    ("transfer.rows", "transfer.incoming", "transfer.sources.opening"),
    (
        "transfer.lines",
        "transfer.moved",
        "transfer.planning",
        "transfer.verify",
        "transfer.sources.places",
    ),
    (
        "transfer.claims",
        "transfer.export",
        "transfer.handover",
        "transfer.reading",
    ),
    ("transfer.target",),
    (
        "transfer.large",
        "transfer.sources.engines",
        "transfer.sources.jsonl",
        "transfer.sources.mongodb",
        "transfer.sources.service",
        "transfer.sources.short_reads",
        "transfer.sources.sqlite",
        "transfer.sources.stored",
    ),
    (
        "transfer.move",
        "transfer.sources.adk_mongodb",
        "transfer.sources.extra_services",
        "transfer.sources.sql",
    ),
    ("transfer",),
    ("__init__",),
    ("commands.transfer_options",),
    ("commands.sources",),
    ("commands.transfer",),
    ("cli",),
    ("__main__",),
)
"""From the bottom up: a module imports from layers before its own only."""

PURE = {
    "version",
    "errors",
    "arguments",
    "details",
    "events",
    "scopes",
    "sizes",
    "turns",
    "values",
    "privileges",
    "checkups",
    "records",
    "past",
    "tags",
    "hooks",
    "codec",
    "documents",
    "queries",
    "conditions",
    "search",
    "page_tokens",
    "spans",
    "refused",
    "sessions",
    "summaries",
    "visibility",
    "wording",
    "changes.change",
    "changes.happenings",
    "changes.items",
    "changes.router",
    "changes.checkpoints",
    "commands.output",
    "transfer.incoming",
    "transfer.items",
    "transfer.lines",
    "transfer.moved",
    "transfer.planning",
    "transfer.rows",
    "transfer.sources.places",
    "transfer.unpickling",
}
STAND_ALONE = {"embedded", "embedded_guard", "embedded_mongod", "embedded_ports"}
"""For tests and demos: they import nothing else, and serve the command for them."""

MODULES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def name_of(path: Path) -> str:
    """A module's dotted name below the package; a subpackage's own is its name."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def file_of(name: str) -> Path:
    return next(path for path in MODULES if name_of(path) == name)


def imports(path: Path) -> Iterator[str]:
    """The absolute names of what a module of the package imports."""
    package = ["mongo_session_service", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            names = [node.module] if node.module else [each.name for each in node.names]
            yield from (".".join([*base, name]) for name in names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names)


def own(path: Path) -> set[str]:
    """The modules of the package that a module imports."""
    prefix = "mongo_session_service."
    return {
        name.removeprefix(prefix) for name in imports(path) if name.startswith(prefix)
    }


def test_every_module_has_its_place() -> None:
    """A new module is put into a layer before anything uses it."""
    placed = {name for layer in LAYERS for name in layer} | STAND_ALONE

    assert {name_of(path) for path in MODULES} == placed


@pytest.mark.parametrize("number", range(len(LAYERS)))
def test_imports_point_one_way(number: int) -> None:
    """No module imports from its own layer or one above it."""
    below = {name for layer in LAYERS[:number] for name in layer}

    for name in LAYERS[number]:
        assert own(file_of(name)) <= below | STAND_ALONE, name


def test_the_embedded_server_stands_apart() -> None:
    """The test server imports nothing of the package it serves."""
    for name in STAND_ALONE:
        assert own(file_of(name)) <= STAND_ALONE


def test_pure_modules_do_no_input_or_output() -> None:
    """Pure modules know neither the driver nor the event loop."""
    for name in PURE:
        roots = {each.partition(".")[0] for each in imports(file_of(name))}

        assert not roots & {"pymongo", "motor", "asyncio", "threading"}, name
        assert "await" not in file_of(name).read_text(), name


def test_files_stay_short() -> None:
    """A file is one idea, in 300 lines at most."""
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in [*MODULES, *TESTS]
    }

    assert {name: length for name, length in lengths.items() if length > 300} == {}


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
