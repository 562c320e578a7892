"""A plugin for pytest: of the cases of a product some run each day.

``@pytest.mark.daily(2)`` has two cases of a test run, chosen by the date and their
names: the same wherever the suite runs on a day. The others are marked ``release``, and
``scripts/check-release`` runs all.
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections import defaultdict
from collections.abc import Iterable

import pytest

WHOLE = "whole"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        default=str(dt.datetime.now(dt.UTC).date()),
        metavar="DATE",
        help=f"run a day's samples of tests; '{WHOLE}' leaves all their cases to "
        "-m release",
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"daily samples: --sample {config.getoption('sample')}"


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave to a release what is not chosen."""
    day = config.getoption("sample")
    products: dict[tuple[str, int], dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        if mark := item.get_closest_marker("daily"):
            product = _product(item, **mark.kwargs), mark.args[0]
            products[product][item.nodeid] = item
    for (_, count), cases in products.items():
        for name in in_turn(day, cases)[0 if day == WHOLE else count :]:
            cases[name].add_marker("release")


def in_turn(day: str, cases: Iterable[str]) -> list[str]:
    """Sort cases as they are chosen on a day."""
    return sorted(cases, key=lambda case: zlib.crc32(f"{day} {case}".encode()))


def _product(item: pytest.Item, case: str | None = None) -> str:
    """Name what an item is a case of: its test, or all of its name but that part."""
    assert isinstance(item, pytest.Function)
    if case:
        return item.nodeid.replace(case, "", 1)
    return f"{item.path}::{item.originalname}"
