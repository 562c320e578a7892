"""Kept stores are as other packages wrote them."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

KEPT = Path(__file__).parents[2] / "fixtures"


def test_kept_stores_are_unchanged() -> None:
    """Each file that was written by another package is the one its README lists."""
    text = (KEPT / "README.md").read_text()
    listed = re.findall(r"^([0-9a-f]{64})  (\S+)$", text, re.MULTILINE)

    assert {path.name for path in KEPT.glob("*.gz")} <= {name for _, name in listed}
    for expected, name in listed:
        assert sha256((KEPT / name).read_bytes()).hexdigest() == expected, name
