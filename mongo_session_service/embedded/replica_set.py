"""Embedded replica set: a real MongoDB on this machine, without Docker.

::

    with EmbeddedReplicaSet() as replica_set:
        service = MongoSessionService(replica_set.uri)

It needs a POSIX system and MongoDB 5.0 or later. Its methods block: in a coroutine use
``async with`` and ``asyncio.to_thread``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self

from mongo_session_service.embedded.mongod import (
    HOST,
    SET_NAME,
    START_LIMIT,
    EmbeddedServerError,
    Mongod,
    find_mongod,
    ports_of,
)
from mongo_session_service.storage.server import initiate_replica_set

_MOST_VOTERS: Final = 7
_PORTS: Final = 65536

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

    A start raises `EmbeddedServerError` if mongod fails, with the end of its log if it
    has ended. A forked child may use its `uri`; only the process that started it can
    stop it. Do not use it from two threads at once.
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
            # First: it takes a while, and no guard would remove the directory yet.
            self._program = find_mongod()
            if self._data_dir is None:
                self._data_dir = Path(tempfile.mkdtemp(prefix="mongo-session-service-"))
            self._data_dir.mkdir(parents=True, exist_ok=True)
            self._ports = ports_of(self._data_dir, len(self._members), self._port)
            for index in self._members:
                self._mongods.append(self._launch(index))
            for mongod in self._mongods:
                mongod.wait_until_listening()
            self._initiate()
        except (OSError, ValueError, EmbeddedServerError) as error:
            self._end()
            raise EmbeddedServerError(f"Could not start: {error}") from error
        except BaseException:
            self._end()
            raise

    def stop(self) -> None:
        """End every member and remove a temporary directory; idempotent."""
        if self._owner != os.getpid():
            return
        if not self._throw_away:
            for mongod in self._mongods:
                mongod.shut_down()
        self._end()

    def wait_for_failure(self) -> None:
        """Wait for a member's mongod to end by itself, and raise with its log's end."""
        while self._mongods:
            for mongod in self._mongods:
                mongod.has_ended(timeout=0.2)
                mongod.check()

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

    def _launch(self, index: int) -> Mongod:
        directory = self.data_dir / f"member-{index}"
        directory.mkdir(exist_ok=True)
        throw_away = self.data_dir if self._throw_away else None
        return Mongod(self._program, self._ports[index], directory, throw_away)

    def _initiate(self) -> None:
        """Wait until there is a primary, and the others follow it."""
        hosts = [f"{HOST}:{port}" for port in self._ports]
        deadline = time.monotonic() + START_LIMIT
        for _ in initiate_replica_set(SET_NAME, hosts, _ELECTIONS):
            for mongod in self._mongods:
                mongod.check()
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"the members elected no primary within {START_LIMIT:.0f} s"
                )
            time.sleep(0.02)

    def _end(self) -> None:
        for mongod in self._mongods:
            mongod.end()
        self._mongods = []
        self._ports = []
        if self._throw_away and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None
