"""A real mongod with access control, and a certificate of a private authority."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
from pymongo import MongoClient

from mongo_session_service.admin.privileges import Privilege
from mongo_session_service.embedded.mongod import (
    HOST,
    SET_NAME,
    Mongod,
    find_mongod,
    free_ports,
)
from support.leak_detector import PASSWORD
from support.replica_set import connect, initiate_alone

ROLE = "mongo_session_service"
USER = "sessions"


@dataclass(frozen=True)
class Secured:
    """A replica set of one member, with users; TLS is offered and not demanded."""

    port: int
    authority: trustme.CA
    folder: Path
    admin: MongoClient[Any]

    def uri(self, user: str = USER, **options: str) -> str:
        """A URI that authenticates a user of the database ``admin``."""
        options = {"replicaSet": SET_NAME, "authSource": "admin"} | options
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"mongodb://{user}:{PASSWORD}@{HOST}:{self.port}/?{query}"

    @property
    def authority_file(self) -> Path:
        return self.folder / "authority.pem"

    def grant(self, privileges: Iterable[Privilege]) -> None:
        """Give the service's user these privileges, and take all others."""
        granted = [
            {"resource": {"db": it.database, "collection": it.collection}}
            | {"actions": [it.action]}
            for it in privileges
        ]
        self.admin.admin.command("updateRole", ROLE, privileges=granted, roles=[])


@contextlib.contextmanager
def secured() -> Iterator[Secured]:
    """A server, in about a second; nothing is left of it."""
    folder = Path(tempfile.mkdtemp(prefix="mongo-session-service-"))
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    server = authority.issue_cert(HOST).private_key_and_cert_chain_pem
    server.write_to_path(str(folder / "server.pem"))
    key = folder / "key"
    key.write_text(secrets.token_hex(100))
    key.chmod(0o600)
    options = [
        f"--keyFile={key}",  # with it comes --auth
        "--tlsMode=preferTLS",
        f"--tlsCertificateKeyFile={folder / 'server.pem'}",
        f"--tlsCAFile={folder / 'authority.pem'}",
        "--tlsAllowConnectionsWithoutCertificates",
    ]
    program = folder / "mongod"
    program.write_text(f'#!/bin/sh\nexec {find_mongod()} "$@" {" ".join(options)}\n')
    program.chmod(0o700)
    (port,) = free_ports(1)
    data = folder / "data"
    data.mkdir()
    mongod = Mongod(str(program), port, data, folder)
    try:
        mongod.wait_until_listening()
        _initiate(mongod, port)
        uri = f"mongodb://root:{PASSWORD}@{HOST}:{port}/?authSource=admin"
        with MongoClient[Any](uri) as admin:
            admin.admin.command("createRole", ROLE, privileges=[], roles=[])
            admin.admin.command("createUser", USER, pwd=PASSWORD, roles=[ROLE])
            yield Secured(port, authority, folder, admin)
    finally:
        mongod.end()
        shutil.rmtree(folder)


def _initiate(mongod: Mongod, port: int) -> None:
    """Do what this machine may do while there are no users: begin."""
    initiate_alone(mongod, port)
    with connect(port) as client:
        client.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
