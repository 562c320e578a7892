"""What a command costs in PyMongo's asyncio client, and in a protocol without it.

    MONGODB_URI=mongodb://127.0.0.1:27017 python scripts/benchmark/driver.py [COUNT]

It needs Python and PyMongo alone. Each command is a ping; PyMongo and the protocol take
turns, three times.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import bson
from pymongo import AsyncMongoClient

PING = b"\0\0\0\0\0" + bson.encode({"ping": 1, "$db": "admin"})
HEADER = 16
"""Bytes before what they describe: length, id, id answered, operation."""


class Loop(asyncio.SelectorEventLoop):
    """An event loop that counts its turns."""

    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]


class Bare(asyncio.Protocol):
    """A connection that sends a ping and reads the reply, and no more."""

    def connection_made(self, transport: Any) -> None:
        """Begin without a reply."""
        self.transport, self.received = transport, b""

    def data_received(self, data: bytes) -> None:
        """Read one reply."""
        self.received += data
        if len(self.received) == int.from_bytes(self.received[:4], "little"):
            reply, self.received = self.received, b""
            self.reply.set_result(bson.decode(reply[HEADER + 5 :]))

    async def ping(self) -> None:
        """Send the command, and wait for its reply."""
        self.reply = asyncio.get_running_loop().create_future()
        header = struct.pack("<iiii", HEADER + len(PING), 1, 0, 2013)
        self.transport.write(header + PING)
        assert (await self.reply)["ok"]  # noqa: S101


async def measure(name: str, count: int, ping: Callable[[], Awaitable[Any]]) -> None:
    """Print what a ping takes."""
    loop: Any = asyncio.get_running_loop()
    turns, used = loop.turns, time.process_time()
    for _ in range(count):
        await ping()
    used = (time.process_time() - used) / count * 1e6
    print(f"{name}: {used:.0f} µs of CPU, {(loop.turns - turns) / count:.1f} turns")


async def main(uri: str, count: int) -> None:
    """Measure both in turns."""
    async with AsyncMongoClient[dict[str, Any]](uri) as client:
        await client.admin.command("ping")
        host, port = await client.address or ("", 0)
        connecting = asyncio.get_running_loop().create_connection
        transport, bare = await connecting(Bare, host, port)
        for _ in range(3):
            await measure("PyMongo", count, lambda: client.admin.command("ping"))
            await measure("bare", count, bare.ping)
        transport.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main(os.environ["MONGODB_URI"], int([*sys.argv, "1000"][1])))
