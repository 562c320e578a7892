"""The ports of a replica set on this machine: chosen once, or remembered."""

from __future__ import annotations

import json
import secrets
import socket
from pathlib import Path
from typing import Final

from .mongod import HOST, EmbeddedServerError

STANDARD_PORT: Final = 27017
"""MongoDB's own, where clients look for it."""

_REMEMBERED: Final = "ports.json"

# Below those that systems give to outgoing connections: no client can then occupy the
# port of a member that is down for a while.
_PORTS: Final = range(20000, 32768)


def ports_of(data_dir: Path, members: int, first: int | None) -> list[int]:
    """The ports of a replica set's members: those of its data, if that is kept.

    Without data, they are `first` and those after it, or else any that are free.

    Raises `EmbeddedServerError` if a port is taken, or the data is of others.
    """
    path = data_dir / _REMEMBERED
    if not path.exists():
        chosen = free_ports(members) if first is None else _successive(first, members)
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
    _check(ports, f"the data in {data_dir} needs it: end the program that has it")
    return ports


def standard_port(data_dir: Path | None, members: int) -> int | None:
    """MongoDB's own port, if a new replica set can have it and those after it."""
    if data_dir is not None and (data_dir / _REMEMBERED).exists():
        return None
    wanted = _successive(STANDARD_PORT, members)
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


def _successive(first: int, members: int) -> list[int]:
    return list(range(first, first + members))


def _check(ports: list[int], remedy: str) -> None:
    for port in ports:
        if refusal := _refusal(port):
            message = f"cannot listen on port {port}: {refusal}; {remedy}"
            raise EmbeddedServerError(message)


def _refusal(port: int) -> str | None:
    """Why nobody can listen there; None if mongod can."""
    with socket.socket() as probe:
        # As mongod does, so that connections that ended just now are not in its way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            return str(error.strerror)
    return None
