"""Serving an app from this process on 127.0.0.1, and reading streams of changes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import uvicorn
from starlette.requests import Request

from support.patience import PATIENCE


@asynccontextmanager
async def serving(
    app: Any, port: int = 0, log_level: str = "critical"
) -> AsyncIterator[str]:
    """Serve an app until the end of the block, cutting off who is connected then."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = uvicorn.Config(
            app,
            log_level=log_level,
            log_config=None,
            lifespan="off",
            ws="none",
            # A server that closes what rests races with the client's next request.
            timeout_keep_alive=int(PATIENCE),
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(PATIENCE):
            await server.is_serving.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.may_end.set()
            await task
            for connection in [*server.server_state.connections]:
                connection.transport.abort()
            for request in [*server.server_state.tasks]:
                request.cancel()
            await asyncio.gather(*server.server_state.tasks, return_exceptions=True)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_serving, self.may_end = asyncio.Event(), asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_serving.set()

    async def main_loop(self) -> None:
        """Wait for the end, where uvicorn looks every 0.1 s."""
        await self.on_tick(0)
        await self.may_end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nobody any more, where uvicorn also waits for 0.1 s."""
        for each in self.servers:
            each.close()
        for each in sockets or []:
            each.close()

    def capture_signals(self) -> Any:
        return nullcontext()  # they are the test run's


@dataclass(frozen=True)
class ServerEvent:
    """A server-sent event."""

    kind: str
    id: str | None
    data: Any

    @property
    def summary(self) -> tuple[str, str | None]:
        """What it is, and the revision in its id."""
        return self.kind, self.id and self.id.partition("-")[0]


class Client:
    """One client's stream of changes.

    ::

        async with Client(f"{url}{CHANGES}") as client:
            assert (await client.next()).kind == "snapshot"
    """

    def __init__(
        self, url: str, headers: dict[str, str] | None = None, **query: Any
    ) -> None:
        self._url = url
        self._headers = headers or {}
        self._query = query
        self.comments: list[str] = []
        self.retry: int | None = None

    async def __aenter__(self) -> Self:
        self._http = httpx.AsyncClient(timeout=PATIENCE, trust_env=False)
        request = self._http.build_request(
            "GET", self._url, params=self._query or None, headers=self._headers
        )
        self.response = await self._http.send(request, stream=True)
        self._lines = self.response.aiter_lines()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.response.aclose()
        await self._http.aclose()

    async def next(self) -> ServerEvent:
        """The next event; raises StopAsyncIteration at the end."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE):
            while True:
                line = await self.line()
                name, _, value = line.partition(": ")
                if name:
                    fields[name] = value
                elif "data" in fields:
                    data = json.loads(fields["data"])
                    return ServerEvent(fields["event"], fields.get("id"), data)

    async def line(self) -> str:
        """The next line; raises StopAsyncIteration at the end."""
        line = await anext(self._lines)
        if line.startswith(":"):
            self.comments.append(line)
        if line.startswith("retry: "):
            self.retry = int(line.removeprefix("retry: "))
        return line

    async def take(self, count: int) -> list[ServerEvent]:
        return [await self.next() for _ in range(count)]

    async def rest(self) -> list[ServerEvent]:
        """All events until the stream ends."""
        received = []
        with suppress(StopAsyncIteration):
            while True:
                received.append(await self.next())
        return received


async def may_read(_: Request, *, action: str, **__: object) -> bool:
    """Let everybody read, and nobody write."""
    return action in {"read", "list"}


def unread(url: str, path: str) -> socket.socket:
    """A client that asks for something and reads nothing."""
    address = urlsplit(url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((address.hostname, address.port))
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
    return client
