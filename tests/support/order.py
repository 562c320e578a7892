"""A plugin for pytest: in which order several workers take the tests.

Those marked ``long`` begin first, so that none is left alone at the end; the others are
mixed, since neighbours wait for the same things. A group stays as it is.
"""

from __future__ import annotations

import zlib

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, int]:
    if item.get_closest_marker("xdist_group"):
        return 0, 0
    is_long = item.get_closest_marker("long") is not None
    return 1 if is_long else 2, zlib.crc32(item.nodeid.encode())
