"""Disks that are small enough to be filled, each of a member of its own; for root."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_CHUNK = bytes(1 << 20)


@contextmanager
def small_disks(members: int, megabytes: int) -> Iterator[Path]:
    """A replica set's folder, with each member's on a disk of this size, in memory.

    Raises:
        CalledProcessError: this user may not mount anything.
    """
    with (
        tempfile.TemporaryDirectory(prefix="small-disks-") as folder,
        ExitStack() as mounted,
    ):
        for index in range(members):
            disk = Path(folder) / folder_of(index)
            disk.mkdir()
            options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs"]
            subprocess.run(["mount", *options, disk], check=True)  # noqa: S607
            mounted.callback(subprocess.run, ["umount", "--lazy", disk], check=True)
        yield Path(folder)


def folder_of(index: int) -> str:
    """The name of a member's folder."""
    return f"member-{index}"


def fill(disk: Path) -> Path:
    """Write a file until there is no space left; delete it to have some again."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(_CHUNK)
    return ballast
