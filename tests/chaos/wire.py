"""A wire to MongoDB, in a process of its own: stopped, it is a lost network.

``python -m chaos.wire HOST PORT`` prints the port it listens on.
"""

from __future__ import annotations

import asyncio
import sys

from support.tcp_proxy import copy


async def main(host: str, port: int) -> None:
    """Pass on what is said, for ever."""

    async def accept(here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        there, forth = await asyncio.open_connection(host, port)
        await asyncio.gather(copy(here, forth), copy(there, back))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
