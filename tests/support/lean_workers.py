"""A plugin for pytest: several processes run all tests with less work beside them."""

from __future__ import annotations

import compileall
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.assertion import rewrite

TESTS: Final = Path(__file__).parents[1]

_THRESHOLDS: Final = (20_000, 20, 50)
"""Of the collector: most objects of a test are gone before it would look at them."""

gc.disable()  # while modules are imported, hardly anything becomes garbage


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the tests once, before the workers all do."""
    if getattr(session.config.option, "numprocesses", None):
        _compile(session.config)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage meanwhile, and none of what is there then."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End a worker, which has reported all: to end Python takes it seconds."""
    if hasattr(config, "workerinput"):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _compile(config: pytest.Config) -> None:
    for folder in ("support", "chaos"):
        compileall.compile_dir(TESTS / folder, quiet=2)
    state: Any = config.stash[rewrite.assertstate_key]
    for path in TESTS.rglob("test_*.py"):
        folder = rewrite.get_cache_dir(path)
        compiled = folder / f"{path.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(path, compiled) is None and rewrite.try_makedirs(folder):  # noqa: SLF001
            stat, code = rewrite._rewrite_test(path, config)  # noqa: SLF001
            rewrite._write_pyc(state, code, stat, compiled)  # noqa: SLF001
