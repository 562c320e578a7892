"""A plugin for pytest: it marks the tests that run often, and those that run seldom.

``scripts/test --fast`` runs all unit tests, the modules below, and the contract on one
backend, which ``tests/contract/conftest.py`` marks. Tests in a browser wait for
``scripts/check-release``, unless they are marked as core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).parents[1]

CORE: Final = frozenset(
    f"integration/{name}.py"
    for name in (
        "consumers/test_consumer_handlers",
        "consumers/test_consumers",
        "storage/test_borrowed_clients",
        "feed/test_wait_for",
        "feed/test_watch_scopes",
        "feed/test_watch_sessions",
        "http/test_live_app",
        "http/test_router_streams",
        "schema/test_schema_version",
        "sessions/test_append_is_atomic",
        "sessions/test_deletions",
        "sessions/test_documents",
        "sessions/test_forks",
        "sessions/test_group_commit",
        "sessions/test_rebase",
        "sessions/test_snapshots",
        "transfer/test_export",
        "transfer/test_import",
    )
)
_MODULES: Final = frozenset(TESTS / each for each in CORE)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark it if it is one of either."""
    path = item.path
    if path.is_relative_to(TESTS / "unit") or path in _MODULES:
        item.add_marker("core")
    needs_browser = "browser" in getattr(item, "fixturenames", ())
    if needs_browser and item.get_closest_marker("core") is None:
        item.add_marker("release")
