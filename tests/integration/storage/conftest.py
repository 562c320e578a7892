"""Connections meet a database that nothing is in."""

from __future__ import annotations

import pytest


@pytest.fixture
def database(new_database: str) -> str:
    """A database that is not there before."""
    return new_database
