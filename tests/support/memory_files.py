"""A server's files in memory, where there is plenty."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108  servers make their own folders
_PLENTY: Final = 8 * 2**30
"""Bytes: two servers take less than half of it."""


@contextmanager
def in_memory() -> Iterator[None]:
    """Have a server that starts here keep its files in memory, if there is plenty.

    Each test has a database of its own, which is thirty files: on a disk, creating them
    takes longer than most tests.
    """
    before = tempfile.tempdir
    if _SHARED_MEMORY.is_dir() and shutil.disk_usage(_SHARED_MEMORY).free > _PLENTY:
        tempfile.tempdir = str(_SHARED_MEMORY)
    try:
        yield
    finally:
        tempfile.tempdir = before
