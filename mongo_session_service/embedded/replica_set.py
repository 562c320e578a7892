"""Embedded replica set: a real MongoDB on this machine, without Docker.

::

    with EmbeddedReplicaSet() as replica_set:
        service = MongoSessionService(replica_set.uri)

It needs a POSIX system and MongoDB 5.0 or later. Its methods block: in a coroutine use
``async with`` and ``asyncio.to_thread``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from mongo_session_service.embedded.mongod import (
    HOST,
    SET_NAME,
    START_LIMIT,
    EmbeddedServerError,
    Mongod,
    find_mongod,
    ports_of,
)

__all__ = ["EmbeddedReplicaSet", "EmbeddedServerError"]

_MOST_VOTERS: Final = 7
_PORTS: Final = 65536
_ALREADY_INITIALIZED: Final = 23
_PRIMARY, _SECONDARY = 1, 2

# A lost primary is replaced in about a second instead of MongoDB's ten.
_ELECTIONS: Final = {
    "electionTimeoutMillis": 1000,
    "heartbeatIntervalMillis": 100,
    "heartbeatTimeoutSecs": 1,
}


class EmbeddedReplicaSet:
    """A replica set of real mongods that ends with this process, even if it is killed.

    `members` is their number, 1 to 7. `data_dir` is kept: a start on it with the same
    number of members restores the data and the ports. Without it, data goes to a
    temporary directory that is removed at the end. `port` is the first member's, and
    the others use the following ports; by default any free ports are used.

    mongod is the program that ``$MONGOD`` names, else the one that the ``embedded``
    extra installs, else the one on the ``PATH``. It listens on 127.0.0.1 only and
    accepts ``failCommand``.

    Every method raises `EmbeddedServerError` if mongod fails; if it has ended, with the
    end of its log and output. Only the process that started the replica set can control
    it: a forked child may use its `uri`. Do not use it from two threads at once.
    """

    def __init__(
        self,
        members: int = 1,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
    ) -> None:
        if not 1 <= members <= _MOST_VOTERS:
            raise ValueError(f"members must be 1 to {_MOST_VOTERS}, not {members}")
        if port is not None and not 1 <= port <= _PORTS - members:
            raise ValueError(f"port must be 1 to {_PORTS - members}, not {port}")
        self._throw_away = data_dir is None
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._members = range(members)
        self._port = port
        self._program = ""
        self._ports: list[int] = []
        self._mongods: list[Mongod] = []
        self._owner = 0

    def start(self) -> None:
        """Start every member; return once there is a primary and the others follow.

        A start that fails leaves nothing running and no temporary directory.
        """
        if self._ports:
            raise EmbeddedServerError("this replica set is already started")
        self._owner = os.getpid()
        try:
            with _explained("Could not start"):
                self._prepare()
                for index in self._members:
                    self._mongods.append(self._launch(index))
                for mongod in self._mongods:
                    mongod.wait_until_listening()
                self._initiate()
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """End every member and remove a temporary directory; idempotent."""
        if self._owner != os.getpid():
            return
        if not self._throw_away:
            for mongod in self._mongods:
                mongod.send(signal.SIGCONT, signal.SIGTERM)
            for mongod in self._mongods:
                mongod.ended(timeout=START_LIMIT)
        self._end()

    @property
    def uri(self) -> str:
        """The connection string, with every member and the replica set's name."""
        if not self._ports:
            raise EmbeddedServerError("this replica set is not started")
        hosts = ",".join(f"{HOST}:{port}" for port in self._ports)
        return f"mongodb://{hosts}/?replicaSet={SET_NAME}"

    @property
    def data_dir(self) -> Path:
        """The directory with a subdirectory for each member's data and `mongod.log`."""
        if self._data_dir is None:
            raise EmbeddedServerError("this replica set is not started")
        return self._data_dir

    @property
    def pids(self) -> tuple[int | None, ...]:
        """The process ID of every member's mongod; None for one that has ended."""
        return tuple(mongod.pid for mongod in self._mongods)

    @property
    def primary(self) -> int:
        """The index of the primary; waits up to 30 seconds for an election."""
        with _explained("Found no primary"), MongoClient[Any](self.uri) as client:
            _, port = client.admin.command("hello")["me"].split(":")
        return self._ports.index(int(port))

    def stop_member(self, index: int, *, kill: bool = False) -> None:
        """End one member, unless it has ended, and wait for its end.

        It shuts down cleanly, even if SIGSTOP has paused it, and is killed if that
        takes over 30 seconds. With `kill` it is killed at once, as in a crash.
        """
        mongod = self._member(index)
        if not kill:
            mongod.send(signal.SIGCONT, signal.SIGTERM)
        if kill or not mongod.ended(timeout=START_LIMIT):
            mongod.send(signal.SIGKILL)
            mongod.ended(timeout=None)

    def start_member(self, index: int) -> None:
        """Start a member that has ended; return when it is primary or secondary."""
        mongod = self._member(index)
        if not mongod.ended():
            return
        with _explained(f"Could not start member {index}"):
            mongod.forget()
            mongod = self._mongods[index] = self._launch(index)
            mongod.wait_until_listening()
            with mongod.connect() as client:
                for _ in _attempts("rejoin the others"):
                    mongod.check()
                    with contextlib.suppress(PyMongoError):
                        hello = client.admin.command("hello")
                        if hello["isWritablePrimary"] or hello["secondary"]:
                            return

    def step_down(self) -> None:
        """Make the primary a secondary, and another member primary.

        A single member is elected again after a second without a primary.
        """
        primary = self._member(self.primary)
        with _explained("Could not step down"), primary.connect() as client:
            if len(self._members) == 1:
                client.admin.command("replSetStepDown", 1, force=True)
            else:
                client.admin.command("replSetStepDown", 10)
                # For those 10 seconds it could not be elected should another fail.
                client.admin.command("replSetFreeze", 0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        # A thread cannot be cancelled. With one worker, the stop of a cancelled start
        # waits for that start to end.
        worker = ThreadPoolExecutor(max_workers=1)
        try:
            await loop.run_in_executor(worker, self.start)
        except asyncio.CancelledError:
            await asyncio.shield(loop.run_in_executor(worker, self.stop))
            raise
        finally:
            worker.shutdown(wait=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(asyncio.to_thread(self.stop))

    def _prepare(self) -> None:
        """Find or choose the program, the directory and the ports."""
        # First: it takes a while, and no guard would remove the directory yet.
        self._program = find_mongod()
        if self._data_dir is None:
            self._data_dir = Path(tempfile.mkdtemp(prefix="mongo-session-service-"))
        self._data_dir.mkdir(parents=True, exist_ok=True)
        self._ports = ports_of(self._data_dir, len(self._members), self._port)

    def _launch(self, index: int) -> Mongod:
        directory = self.data_dir / f"member-{index}"
        directory.mkdir(exist_ok=True)
        throw_away = self.data_dir if self._throw_away else None
        return Mongod(self._program, self._ports[index], directory, throw_away)

    def _initiate(self) -> None:
        """Initiate the set, unless its data holds it, and wait until it is healthy.

        The first member calls for elections at once, rather than after a timeout.
        """
        hosts = [f"{HOST}:{port}" for port in self._ports]
        members = [{"_id": index, "host": host} for index, host in enumerate(hosts)]
        config = {"_id": SET_NAME, "members": members, "settings": _ELECTIONS}
        with self._mongods[0].connect() as client:
            try:
                client.admin.command("replSetInitiate", config)
            except OperationFailure as error:
                if error.code != _ALREADY_INITIALIZED:
                    raise
            for _ in _attempts("have every member as primary or secondary"):
                for mongod in self._mongods:
                    mongod.check()
                with contextlib.suppress(PyMongoError):
                    status = client.admin.command("replSetGetStatus")
                    states = sorted(member["state"] for member in status["members"])
                    if states == [_PRIMARY] + [_SECONDARY] * (len(states) - 1):
                        return
                    if _PRIMARY not in states:
                        client.admin.command("replSetStepUp")

    def _member(self, index: int) -> Mongod:
        if not self._mongods or self._owner != os.getpid():
            raise EmbeddedServerError("this process has not started this replica set")
        return self._mongods[index]

    def _end(self) -> None:
        for mongod in self._mongods:
            mongod.release()
        for mongod in self._mongods:
            mongod.wait()
        self._mongods = []
        self._ports = []
        if self._throw_away and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None


def _attempts(goal: str) -> Iterator[None]:
    """Try again every 20 ms; raise `EmbeddedServerError` after 30 seconds."""
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)
    raise EmbeddedServerError(f"did not {goal} within {START_LIMIT:.0f} s")


@contextlib.contextmanager
def _explained(failure: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, PyMongoError, EmbeddedServerError) as error:
        raise EmbeddedServerError(f"{failure}: {error}") from error
