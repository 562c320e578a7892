"""What must never be seen outside of MongoDB."""

from __future__ import annotations

PASSWORD = "canary-PaSsWoRd-9f31"  # noqa: S105  it opens nothing
"""The password in every URI that tests use."""
