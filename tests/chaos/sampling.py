"""Samples of the resources that the processes of a run take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Sample:
    """The cost of a run at one moment."""

    at: float
    """Seconds since its beginning."""
    memory: float
    """Memory of the oldest client process, in MB."""
    threads: int
    """Threads of that process."""
    connections: int
    """Connections to all members, of all processes."""


def sample(at: float, pids: Sequence[int]) -> Sample:
    """Take a sample of these processes, the oldest first."""
    status = Path(f"/proc/{pids[0]}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines())
    files = [file for pid in pids for file in _open_files(pid)]
    return Sample(
        at=at,
        memory=int(fields["VmRSS"].split()[0]) / 1024,
        threads=int(fields["Threads"]),
        connections=sum(each.startswith("socket:") for each in files),
    )


def _open_files(pid: int) -> Iterator[str]:
    """The files of a process, which may close some meanwhile."""
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield str(each.readlink())
