"""Faults that happen during a run, in random order, and how each is made good."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError
from support.replica_set import FailingReplicaSet

from chaos.disks import fill, folder_of

CLIENTS = "chaos"
"""The ``appName`` of those whose commands fail."""

_COMMANDS = (
    "insert",
    "update",
    "delete",
    "find",
    "aggregate",
    "getMore",
    "commitTransaction",
    "abortTransaction",
)
_WRITES = ("insert", "update", "delete", "commitTransaction")
_TRANSIENT = {"errorCode": 112, "errorLabels": ["TransientTransactionError"]}
_UNKNOWN = {"errorCode": 91, "errorLabels": ["UnknownTransactionCommitResult"]}
_NOT_REPLICATED = {"code": 64, "errmsg": "waiting for replication timed out"}


class Nemesis:
    """Breaks a replica set of three, one thing at a time, and makes it whole again."""

    def __init__(self, replica_set: FailingReplicaSet, freeze: float) -> None:
        """Does nothing yet.

        Args:
            replica_set: The victim.
            freeze: For how many seconds a primary is stopped.
        """
        self._replica_set = replica_set
        self._freeze = freeze
        self.done: dict[str, int] = {}
        """How often each fault was tried."""

    @property
    def faults(self) -> dict[str, Callable[[random.Random], None]]:
        """All that can go wrong, by name."""
        return {
            "SIGKILL of the primary": self.kill,
            "step-down": self.step_down,
            "SIGSTOP of the primary": self.freeze,
            "disk full": self.fill_disk,
            "connections cut": self.cut,
            "transient errors": self.fail_transiently,
            "unknown commits": self.hide_commits,
            "late majority": self.delay_majority,
        }

    def strike(self, name: str, chance: random.Random) -> None:
        """Let one thing go wrong, and make it good."""
        self.done[name] = self.done.get(name, 0) + 1
        self.faults[name](chance)

    def kill(self, _: random.Random) -> None:
        """A crash of the primary, and its return."""
        primary = self._replica_set.primary
        self._replica_set.stop_member(primary, kill=True)
        assert self._replica_set.primary != primary
        self._replica_set.start_member(primary)

    def step_down(self, _: random.Random) -> None:
        self._replica_set.step_down()

    def freeze(self, _: random.Random) -> None:
        """A primary that does not answer, and does not know later that it is none."""
        pid = self._replica_set.pids[self._replica_set.primary]
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(self._freeze)
        finally:
            os.kill(pid, signal.SIGCONT)

    def fill_disk(self, _: random.Random) -> None:
        """A primary that cannot write another byte to its files.

        Its disk really is full, if it has one of its own; else its files are.
        """
        index = self._replica_set.primary
        pid = self._replica_set.pids[index]
        assert pid is not None
        disk = self._replica_set.data_dir / folder_of(index)
        ballast = fill(disk) if disk.is_mount() else None
        if ballast is None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, 4096))
        deadline = time.monotonic() + 20
        while self._replica_set.pids[index] is not None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        self._replica_set.stop_member(index, kill=True)
        if ballast is not None:
            ballast.unlink()
        self._replica_set.start_member(index)

    def cut(self, chance: random.Random) -> None:
        """Connections closed in the middle of any command."""
        self._fail(chance, _COMMANDS, closeConnection=True)

    def fail_transiently(self, chance: random.Random) -> None:
        self._fail(chance, _WRITES, **_TRANSIENT)

    def hide_commits(self, chance: random.Random) -> None:
        """Commits of which nobody knows whether they were."""
        self._fail(chance, ("commitTransaction",), **_UNKNOWN)

    def delay_majority(self, chance: random.Random) -> None:
        """Commits that are done, but not known to be on a majority."""
        self._fail(chance, ("commitTransaction",), writeConcernError=_NOT_REPLICATED)

    def _fail(
        self, chance: random.Random, commands: tuple[str, ...], **how: Any
    ) -> None:
        data = {"failCommands": list(commands), "appName": CLIENTS, **how}
        mode = {"activationProbability": chance.uniform(0.02, 0.3)}
        point = {"configureFailPoint": "failCommand"}
        for member in self._members():
            member.admin.command({**point, "mode": mode, "data": data})
        time.sleep(chance.uniform(0.5, 2))
        for member in self._members():
            member.admin.command({**point, "mode": "off"})

    def _members(self) -> Iterator[MongoClient[Any]]:
        with MongoClient[Any](self._replica_set.uri) as client:
            hosts = sorted(client.nodes) or [client.primary]
            hosts = [each for each in hosts if each]
        for host, port in hosts:
            with (
                contextlib.suppress(PyMongoError),
                MongoClient[Any](host, port, directConnection=True) as member,
            ):
                yield member
