from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.uri_parser import parse_uri

from mongo_session_service import MongoSessionService
from mongo_session_service.admin import Finding, Status, examine
from mongo_session_service.embedded import EmbeddedReplicaSet, EmbeddedServerError


def client_of(replica_set: EmbeddedReplicaSet) -> MongoClient[Any]:
    return MongoClient(replica_set.uri)


def insert(replica_set: EmbeddedReplicaSet, number: int) -> None:
    with client_of(replica_set) as client:
        client.test.numbers.insert_one({"_id": number})


def numbers(replica_set: EmbeddedReplicaSet) -> list[int]:
    with client_of(replica_set) as client:
        return [found["_id"] for found in client.test.numbers.find().sort("_id")]


def test_only_this_machine_can_connect() -> None:
    """No other address is listened on, and there is no socket file either."""
    with EmbeddedReplicaSet() as replica_set:
        [(_, port)] = parse_uri(replica_set.uri)["nodelist"]
        socket.create_connection(("127.0.0.1", port)).close()
        # Every address in 127/8 is this machine's, so only a listener is missing.
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
        with pytest.raises(OSError, match=r"refused|Cannot assign|not supported"):
            socket.create_connection(("::1", port))
        assert not Path(f"/tmp/mongodb-{port}.sock").exists()  # noqa: S108


async def test_the_loop_runs_on_while_it_starts() -> None:
    """The async context manager does its blocking work in a thread."""
    turns: list[int] = []
    asyncio.get_running_loop().call_soon(turns.append, 1)
    async with EmbeddedReplicaSet() as replica_set:
        assert turns == [1]
        asyncio.get_running_loop().call_soon(turns.append, 2)
        await asyncio.to_thread(insert, replica_set, 1)
    assert turns == [1, 2]
    assert replica_set.pids == ()


async def members_of(replica_set: EmbeddedReplicaSet) -> Finding:
    """What the doctor finds of the set's members."""
    service = MongoSessionService(replica_set.uri)
    found = {each.check: each async for each in examine(service)}
    await service.close()
    return found["members"]


def test_a_killed_primary_is_replaced() -> None:
    """Its process id is gone, another member takes over, and the doctor names it."""
    with EmbeddedReplicaSet(members=3) as replica_set:
        before = list(replica_set.pids)
        insert(replica_set, 1)
        with client_of(replica_set) as client:
            address = client.admin.command("hello")["me"].split(":")
        ports = [str(port) for _, port in parse_uri(replica_set.uri)["nodelist"]]
        killed = ports.index(address[1])
        os.kill(before[killed] or 0, signal.SIGKILL)
        insert(replica_set, 2)
        assert numbers(replica_set) == [1, 2]
        before[killed] = None
        assert list(replica_set.pids) == before
        members = asyncio.run(members_of(replica_set))
        assert members.status is Status.WARNING
        assert members.says == f"not reached: {':'.join(address)}"
        with pytest.raises(EmbeddedServerError, match="mongod has ended"):
            replica_set.wait_for_failure()


def test_a_given_directory_keeps_data_and_ports(tmp_path: Path) -> None:
    """Starting on it again brings back the same database, with as many members."""
    with EmbeddedReplicaSet(3, data_dir=tmp_path) as replica_set:
        uri = replica_set.uri
        insert(replica_set, 1)
    with EmbeddedReplicaSet(3, data_dir=tmp_path) as replica_set:
        assert replica_set.uri == uri
        assert numbers(replica_set) == [1]
    with pytest.raises(EmbeddedServerError, match="is 3, not 1"):
        EmbeddedReplicaSet(data_dir=tmp_path).start()


@pytest.mark.parametrize("members", [0, 8])
def test_a_set_has_one_to_seven_members(members: int) -> None:
    """MongoDB lets at most seven members vote."""
    with pytest.raises(ValueError, match="1 to 7"):
        EmbeddedReplicaSet(members)
