"""A plugin for pytest: of the cases of a product some run each day.

``@pytest.mark.daily(2)`` has two cases of a test run, chosen by the date and their
names: the same wherever the suite runs on a day. The others are marked ``release``, and
``scripts/check-release`` runs all. So does whoever chooses tests, by a path or a name.
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections import defaultdict
from collections.abc import Iterable

import pytest

ALL, NONE = "all", "none"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sample",
        metavar="DATE",
        help=f"run the cases of this day, or '{ALL}' of them; '{NONE}' leaves them to "
        "-m release",
    )


@pytest.hookimpl(tryfirst=True)  # before xdist hands the options to its workers
def pytest_configure(config: pytest.Config) -> None:
    """Run all cases of what is chosen, and of all tests a sample."""
    is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    today = str(dt.datetime.now(dt.UTC).date())
    usual = today if is_whole and not config.option.keyword else ALL
    day = config.option.sample = config.option.sample or usual
    if day not in {ALL, NONE} and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(zlib.crc32(day.encode()))  # its sample too


def pytest_report_header(config: pytest.Config) -> str:
    return f"daily samples: --sample {config.option.sample}"


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leave to a release what is not chosen."""
    day = config.option.sample
    products: dict[tuple[str, int], dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        if day != ALL and (mark := item.get_closest_marker("daily")):
            product = _product(item, **mark.kwargs), mark.args[0]
            products[product][item.nodeid] = item
    for (_, count), cases in products.items():
        for name in in_turn(day, cases)[0 if day == NONE else count :]:
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
