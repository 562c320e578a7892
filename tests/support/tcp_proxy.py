"""A proxy that loses MongoDB's answers: what was asked is done, and nobody knows.

It can also hold a command back until whoever has sent it is gone.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from typing import Any, Self

_HEADER = struct.Struct("<iiii")
_OP_MSG = 2013
_OF_MONITORS = {b"hello", b"ismaster", b"isMaster"}


class Proxy:
    """Passes on what is said, but for the answers it is told to lose.

    ::

        async with Proxy(*admin.address) as proxy:
            service = MongoSessionService(proxy.uri)
            ...
            proxy.lose(3, 4)  # of the commands that are sent from now on
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._port = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._lost: frozenset[int] = frozenset()
        self.commands: list[str] = []
        """What was sent since ``lose``."""
        self._held_back = ""
        self.is_holding = asyncio.Event()
        """Set once it holds the command back."""
        self._is_late = asyncio.Event()
        self._is_done = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Listen, on the port that it had before."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Cut off who is connected, and refuse others."""
        self._server.close()
        for each in self._writers:
            each.close()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def uri(self) -> str:
        """Where it is, as if it were the primary."""
        # The members tell their own addresses, which a client would go to else.
        return f"mongodb://127.0.0.1:{self._port}/?directConnection=true"

    def lose(self, *numbers: int) -> None:
        """Lose the answers to these commands, counted from 1 and from now on."""
        self.commands = []
        self._lost = frozenset(numbers)

    def hold_back(self, name: str) -> None:
        """Hold the next command of this name back, and lose its answer."""
        self._held_back = name

    async def pass_on(self) -> None:
        """Pass on what is held back; returns when the server has done it."""
        self._is_late.set()
        await self._is_done.wait()

    @property
    def has_lost(self) -> bool:
        """Whether there was one to be lost."""
        return bool(self._lost) and min(self._lost) <= len(self.commands)

    async def _accept(self, *client: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        server = await asyncio.open_connection(*self._target)
        writers = {client[1], server[1]}
        self._writers |= writers
        # Who waits for an answer hears nothing, but who streams them hears many.
        back = asyncio.create_task(copy(server[0], client[1]))
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                while message := await _message(client[0]):
                    name = _name(message)
                    if name and name == self._held_back:
                        self._held_back = ""
                        self.is_holding.set()
                        await self._is_late.wait()
                        await self._lose_answer(message, back, *server)
                        self._is_done.set()
                        return
                    if name and self._is_to_be_lost(name):
                        await self._lose_answer(message, back, *server)
                        return
                    server[1].write(message)
        finally:
            back.cancel()
            self._writers -= writers
            for each in writers:
                each.close()

    async def _lose_answer(
        self,
        message: bytes,
        back: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        back.cancel()
        await asyncio.wait([back])
        writer.write(message)
        await _message(reader)  # it is done

    def _is_to_be_lost(self, name: str) -> bool:
        self.commands.append(name)
        return len(self.commands) in self._lost


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Pass on all that comes, then close the target."""
    with suppress(OSError):
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    target.close()


async def _message(source: asyncio.StreamReader) -> bytes:
    header = await source.readexactly(_HEADER.size)
    length, *_ = _HEADER.unpack(header)
    return header + await source.readexactly(length - _HEADER.size)


def _name(message: bytes) -> str | None:
    """The command's name; None for what only looks after connections."""
    *_, code = _HEADER.unpack_from(message)
    if code != _OP_MSG:
        return None
    # Flags, the section's kind, the document's length, the type of its first element.
    start = _HEADER.size + 4 + 1 + 4 + 1
    name = message[start : message.index(b"\0", start)]
    return None if name in _OF_MONITORS else name.decode()
