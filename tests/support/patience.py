"""How long tests wait for what comes, as a rule, at once."""

from __future__ import annotations

from typing import Final

PATIENCE: Final = 100
"""Seconds: enough for a process that starts on a busy machine with nothing compiled;
a little less than a test may take, so that it shows what it waits for."""
