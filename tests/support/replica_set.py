"""A replica set whose members fail on demand; one made of a server that is in none."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from mongo_session_service.embedded import EmbeddedReplicaSet
from mongo_session_service.embedded.mongod import HOST, SET_NAME, Mongod
from mongo_session_service.storage.server import initiate_replica_set


class FailingReplicaSet(EmbeddedReplicaSet):
    """A replica set whose members are stopped, started again and deposed."""

    @property
    def primary(self) -> int:
        """The index of the primary; waits up to 30 seconds for an election."""
        with MongoClient[Any](self.uri) as client:
            _, port = client.admin.command("hello")["me"].split(":")
        return self._ports.index(int(port))

    def stop_member(self, index: int, *, kill: bool = False) -> None:
        """End one member, unless it has ended: in good order, or as a crash does."""
        if not kill:
            self._mongods[index].shut_down()
        self._mongods[index].end()

    def start_member(self, index: int) -> None:
        """Start a member that has ended; return when it is primary or secondary."""
        mongod = self._mongods[index] = self._launch(index)
        mongod.wait_until_listening()
        with connect(self._ports[index]) as client:
            while True:
                mongod.check()
                with suppress(PyMongoError):
                    hello = client.admin.command("hello")
                    if hello["isWritablePrimary"] or hello["secondary"]:
                        return
                time.sleep(0.02)

    def step_down(self) -> None:
        """Make the primary a secondary, and another member primary.

        A single member is elected again after a second without a primary.
        """
        with connect(self._ports[self.primary]) as client:
            if len(self._ports) == 1:
                client.admin.command("replSetStepDown", 1, force=True)
            else:
                client.admin.command("replSetStepDown", 10)
                # For those 10 seconds it could not be elected should another fail.
                client.admin.command("replSetFreeze", 0)


def connect(port: int) -> MongoClient[Any]:
    """Open a client of one server on this machine, whatever its state."""
    return MongoClient(HOST, port, directConnection=True, serverSelectionTimeoutMS=2000)


def initiate_alone(mongod: Mongod, port: int) -> None:
    """Make a server the only member of a replica set, and wait until it can write."""
    for _ in initiate_replica_set(SET_NAME, [f"{HOST}:{port}"], {}):
        mongod.check()
        time.sleep(0.02)
    with MongoClient[Any](HOST, port, replicaSet=SET_NAME) as client:
        client.admin.command("hello")
