"""Runs ADK's contract tests for session services against this package's.

Their fixture ``session_service`` is each of ADK's services in turn. Here it is this
package's, in a database of its own for each test.
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import sys
from collections.abc import Generator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest

from mongo_session_service import MongoSessionService
from mongo_session_service.embedded import EmbeddedReplicaSet

TESTS: Final = Path("tests/unittests/sessions/test_session_service.py")
FIXTURE: Final = "session_service"
NO_TESTS: Final = 3


class Conformance:
    """A pytest plugin: which tests run, with which service, and how they went."""

    def __init__(self, uri: str) -> None:
        """Have each test use a database of its own on a server."""
        self._uri = uri
        self._passed: dict[str, bool] = {}

    @property
    def all_passed(self) -> bool:
        """True if no test failed, or was skipped."""
        return all(self._passed.values())

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Keep each contract test once, however many services ADK runs it with."""
        kept = {
            _name(item): item
            for item in reversed(items)
            if FIXTURE in getattr(item, "fixturenames", ())
        }
        left_out = [item for item in items if kept.get(_name(item)) is not item]
        config.hook.pytest_deselected(items=left_out)
        items[:] = reversed(kept.values())

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> object:
        """Make this package's service in place of one of ADK's."""
        if fixturedef.argname != FIXTURE:
            return None
        database = f"conformance_{secrets.token_hex(4)}"
        service = MongoSessionService(self._uri, database=database)
        request.addfinalizer(lambda: asyncio.run(service.close()))
        fixturedef.cached_result = (service, fixturedef.cache_key(request), None)
        return service

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Note how a test went: a skipped one has not passed."""
        report = yield
        name = _name(item)
        self._passed[name] = self._passed.get(name, True) and report.passed
        return report

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        """Name each test, and count."""
        terminalreporter.section("ADK's contract tests for session services")
        for name, passed in self._passed.items():
            terminalreporter.line(f"{'passed' if passed else 'NOT PASSED':10}  {name}")
        passed = sum(self._passed.values())
        terminalreporter.line(
            f"google-adk {version('google-adk')}: {passed} passed,"
            f" {len(self._passed) - passed} not passed"
        )


def _name(item: pytest.Item) -> str:
    """Name a test and its parameters, but for the service."""
    name = getattr(item, "originalname", item.name)
    parameters = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    parameters.pop(FIXTURE, None)
    shown = ", ".join(f"{of}={value!r}" for of, value in parameters.items())
    return f"{name}({shown})" if shown else name


def find_tests(source: str) -> Path | None:
    """Find the tests in a checkout, or beside the installed package."""
    package = importlib.util.find_spec("google.adk")
    installed = Path(package.origin).parents[2] if package and package.origin else None
    for folder in [Path(source)] if source else [installed]:
        if folder and (folder / TESTS).is_file():
            return folder
    return None


def main() -> int:
    """Run them on a new server, and return the exit code."""
    source, *chosen = sys.argv[1:]
    folder = find_tests(source)
    if folder is None:
        where = source or "the installed google-adk"
        print(
            f"conformance: not run: {where} has no {TESTS}. Set ADK_SOURCE to a"
            f" checkout of google/adk-python at v{version('google-adk')}.",
            file=sys.stderr,
        )
        return NO_TESTS
    sys.dont_write_bytecode = True
    # Nothing of the checkout's own configuration, nor of this project's.
    settings = ["-c", "/dev/null", "--rootdir", str(folder), "-p", "no:cacheprovider"]
    settings += ["-o", "asyncio_mode=auto", "-q", "--tb=short"]
    settings += ["-o", "asyncio_default_fixture_loop_scope=function"]
    settings += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    with EmbeddedReplicaSet() as server:
        plugin = Conformance(server.uri)
        code = pytest.main([*settings, str(folder / TESTS), *chosen], [plugin])
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:  # those of ADK 1 have no fixture
        return NO_TESTS
    return 0 if code == pytest.ExitCode.OK and plugin.all_passed else 1


if __name__ == "__main__":
    sys.exit(main())
